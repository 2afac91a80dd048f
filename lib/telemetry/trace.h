// What a process did when: a file that Perfetto (ui.perfetto.dev) and chrome://tracing open.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "lib/limits/limits.h"

namespace muster {

// A number that is shown with an event.
struct TraceArgument {
  const char* name = nullptr;
  int64_t value = 0;
};
using TraceArguments = std::array<TraceArgument, 3>;

// Events in memory that is allocated once. Recording takes one atomic addition and no lock; what
// does not fit any more is counted and dropped, so that the beginning of a run is what is kept.
// Names are literals: they are kept as they are, and need no escaping in JSON. Thread-safe.
//
// The format is that of "Trace Event Format" (Google, 2016), a JSON object with "traceEvents".
class Trace {
 public:
  // Makes `path` at once, so that a wrong one is known before the work begins. UNAVAILABLE when it
  // cannot be written.
  static absl::StatusOr<std::unique_ptr<Trace>> Create(
      std::string path, int64_t events_max = limits::kTraceEventsMax);
  ~Trace();  // writes

  // Nanoseconds of the clock that events are stamped with.
  static int64_t Now();

  // `track` did this from `begin` to `end`. Spans of a track nest or follow each other.
  void Span(int track, const char* name, int64_t begin, int64_t end,
            const TraceArguments& arguments = {});

  // The life of something that overlaps others of its name: `id` tells it apart from them.
  void Begin(int track, const char* name, int64_t id, const TraceArguments& arguments = {});
  void Mark(int track, const char* name, const char* what, int64_t id,
            const TraceArguments& arguments = {});
  void End(int track, const char* name, int64_t id, const TraceArguments& arguments = {});

  void NameTrack(int track, std::string name) ABSL_LOCKS_EXCLUDED(mu_);

  int64_t dropped() const;

  // Writes what there is so far; may be called again, and while others record.
  absl::Status Write() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class Kind : uint8_t { kNone, kSpan, kBegin, kMark, kEnd };
  struct Event;

  Trace(std::string path, int64_t events_max);
  void Record(Kind kind, int track, const char* name, const char* what, int64_t time,
              int64_t length_or_id, const TraceArguments& arguments);
  static void AppendTo(std::string& json, const Event& event, int64_t origin);

  const std::string path_;
  const int64_t origin_;
  const int64_t events_max_;
  const std::unique_ptr<Event[]> events_;
  std::atomic<int64_t> next_ = 0;
  mutable absl::Mutex mu_;
  std::map<int, std::string> tracks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
