// What a process does when, recorded in memory for as long as somebody wants to know.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace muster {

// A number that is shown with an event. That of its step is named "step".
struct TraceArgument {
  const char* name = nullptr;
  int64_t value = 0;
};
using TraceArguments = std::array<TraceArgument, 3>;

// Off until Start(), and then again from Stop() on: whoever would record looks at on() first, which
// costs one load. While it is on an event takes three atomic additions and no lock, in memory that
// Start() allocates; what does not fit any more is counted and dropped, so that the beginning is
// what is kept. Names are literals: they are kept as they are, and need no escaping in JSON.
// Thread-safe.
class Trace {
 public:
  enum class Kind : uint8_t { kNone, kSpan, kBegin, kMark, kEnd };
  struct Event {
    Kind kind = Kind::kNone;
    int track = 0;
    const char* name = nullptr;
    const char* what = nullptr;  // of a mark
    int64_t time = 0;
    int64_t length = 0;  // of a span
    int64_t id = 0;      // of the others
    TraceArguments arguments;
  };
  struct Recording {
    std::vector<Event> events;
    std::map<int, std::string> tracks;
    int64_t dropped = 0;
  };

  Trace() = default;

  // Nanoseconds of the clock that events are stamped with.
  static int64_t Now();

  bool on() const { return on_.load(std::memory_order_relaxed); }

  struct Extent {
    int64_t events_max = 0;
    int64_t steps = 0;  // 0: until Stop()
    // Told once the steps are over, on the thread that made them; may be empty.
    std::function<void()> over = nullptr;
  };
  // False: it is on already, for somebody else.
  bool Start(Extent extent) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for events that are being recorded, forgets them and gives its memory back. Nothing where
  // it was not started.
  Recording Stop() ABSL_LOCKS_EXCLUDED(mu_);
  // What there is so far; others may record meanwhile.
  Recording Read() const ABSL_LOCKS_EXCLUDED(mu_);

  // One thread makes the steps. After the last one that it was started for, recording goes on until
  // Stop(): another member may have begun later.
  void StepBegins(int64_t step);
  void StepEnds(int64_t step) ABSL_LOCKS_EXCLUDED(mu_);
  // The steps that were recorded from beginning to end, [first, end), once they are over; an empty
  // range until then.
  struct Steps {
    int64_t first = 0;
    int64_t end = 0;
  };
  Steps over() const ABSL_LOCKS_EXCLUDED(mu_);

  // `track` did this from `begin` to `end`. Spans of a track nest or follow each other.
  void Span(int track, const char* name, int64_t begin, int64_t end,
            const TraceArguments& arguments = {});

  // The life of something that overlaps others of its name: `id` tells it apart from them.
  void Begin(int track, const char* name, int64_t id, const TraceArguments& arguments = {});
  void Mark(int track, const char* name, const char* what, int64_t id,
            const TraceArguments& arguments = {});
  void End(int track, const char* name, int64_t id, const TraceArguments& arguments = {});

  // Names outlast recordings.
  void NameTrack(int track, std::string name) ABSL_LOCKS_EXCLUDED(mu_);

  int64_t dropped() const;

 private:
  struct Slot {
    std::atomic<bool> filled = false;
    Event event;
  };

  void Record(const Event& event);
  Recording Copy() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Clear() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::atomic<bool> on_ = false;
  // Who records is counted, so that Stop() knows when nobody uses the memory any more: one who
  // finds it on after he was counted is waited for.
  std::atomic<int> recording_ = 0;
  std::atomic<int64_t> next_ = 0;
  // These change only while it is off and nobody records.
  int64_t events_max_ = 0;
  std::unique_ptr<Slot[]> slots_;
  std::atomic<int64_t> first_step_ = -1;  // that began while it was on
  std::atomic<int64_t> steps_ = 0;

  mutable absl::Mutex mu_;
  std::function<void()> over_ ABSL_GUARDED_BY(mu_);
  Steps made_ ABSL_GUARDED_BY(mu_);
  std::map<int, std::string> tracks_ ABSL_GUARDED_BY(mu_);
};

// Records the time from here to its end, if the trace is on at its beginning.
class TraceSpan {
 public:
  // `trace` may be null: nothing is recorded.
  TraceSpan(Trace* trace, int track, const char* name, const TraceArguments& arguments = {})
      : trace_(trace != nullptr && trace->on() ? trace : nullptr),
        track_(track),
        name_(name),
        arguments_(arguments),
        begin_(trace_ != nullptr ? Trace::Now() : 0) {}
  ~TraceSpan() {
    if (trace_ != nullptr) trace_->Span(track_, name_, begin_, Trace::Now(), arguments_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Trace* const trace_;
  const int track_;
  const char* const name_;
  const TraceArguments arguments_;
  const int64_t begin_;
};

}  // namespace muster
