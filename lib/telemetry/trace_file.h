// A trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/limits/limits.h"
#include "lib/telemetry/trace.h"

namespace muster {

// The format is that of "Trace Event Format" (Google, 2016), a JSON object with "traceEvents".
// Thread-safe.
class TraceFile {
 public:
  // Starts `trace`, which is off and outlives the file, and makes `path` at once, so that a wrong
  // one is known before the work begins. UNAVAILABLE when it cannot be written.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Create(
      std::string path, Trace* trace, int64_t events_max = limits::kTraceEventsMax);
  ~TraceFile();  // writes and stops the trace

  // Writes what there is so far; may be called again, and while others record.
  absl::Status Write() const;

 private:
  TraceFile(std::string path, Trace* trace);

  const std::string path_;
  Trace* const trace_;
  const int64_t origin_;
};

}  // namespace muster
