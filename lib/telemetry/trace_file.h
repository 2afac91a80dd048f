// Writes a trace for Perfetto (ui.perfetto.dev) and chrome://tracing.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/limits/limits.h"
#include "lib/telemetry/trace.h"

namespace muster {

// The format is "Trace Event Format" (Google, 2016), a JSON object with "traceEvents". Thread-safe.
class TraceFile {
 public:
  // Starts `trace`, which must be off and outlive the file. Creates `path` at once, so that a wrong
  // path is reported before the work begins. Returns UNAVAILABLE if it cannot be written.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Create(
      std::string path, Trace* trace, int64_t events_max = limits::kTraceEventsMax);
  ~TraceFile();  // writes the file and stops the trace

  // Writes the events so far. May be called repeatedly, and while others record.
  absl::Status Write() const;

 private:
  TraceFile(std::string path, Trace* trace);

  const std::string path_;
  Trace* const trace_;
  const int64_t origin_;
};

}  // namespace muster
