// Records in memory what a process does and when, while a recording is on.
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

// A number shown with an event. The argument for the event's step is named "step".
struct TraceArgument {
  const char* name = nullptr;
  int64_t value = 0;
};
using TraceArguments = std::array<TraceArgument, 3>;

// A trace is off until Start(), and again after Stop(). Callers check on() before they record,
// which costs one load. Thread-safe.
//
// While it is on, an event takes three atomic additions and no lock, in memory that Start()
// allocates. When the memory is full, events are counted and dropped, so the beginning is kept.
// Names must be literals: the trace keeps the pointers, and JSON needs no escaping for them.
class Trace {
 public:
  enum class Kind : uint8_t { kNone, kSpan, kBegin, kMark, kEnd };
  struct Event {
    Kind kind = Kind::kNone;
    int track = 0;
    const char* name = nullptr;
    const char* what = nullptr;  // only for a mark
    int64_t time = 0;
    int64_t length = 0;  // only for a span
    int64_t id = 0;      // for all other kinds
    TraceArguments arguments;
  };
  struct Recording {
    std::vector<Event> events;
    std::map<int, std::string> tracks;
    int64_t dropped = 0;
  };

  Trace() = default;

  // Returns nanoseconds of the clock that stamps events.
  static int64_t Now();

  bool on() const { return on_.load(std::memory_order_relaxed); }

  struct Extent {
    int64_t events_max = 0;
    int64_t steps = 0;  // 0: until Stop()
    // Called when the steps are over, on the thread that made them. May be empty.
    std::function<void()> over = nullptr;
  };
  // Starts a recording. Returns false if another one is on.
  bool Start(Extent extent) ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until events being recorded are complete, takes them, and frees the memory. Does nothing
  // if no recording is on.
  Recording Stop() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the events so far. Other threads may record meanwhile.
  Recording Read() const ABSL_LOCKS_EXCLUDED(mu_);

  // Mark the beginning and the end of a step. Called on the one thread that makes the steps. After
  // the last requested step, recording continues until Stop(), because another member may have
  // begun later.
  void StepBegins(int64_t step);
  void StepEnds(int64_t step) ABSL_LOCKS_EXCLUDED(mu_);
  // The steps [first, end) that were recorded completely, after they are over; an empty range until
  // then.
  struct Steps {
    int64_t first = 0;
    int64_t end = 0;
  };
  Steps over() const ABSL_LOCKS_EXCLUDED(mu_);

  // Records that `track` did `name` from `begin` to `end`. Spans of a track nest or follow one
  // another.
  void Span(int track, const char* name, int64_t begin, int64_t end,
            const TraceArguments& arguments = {});

  // Records the life of an object that overlaps others of the same name; `id` distinguishes them.
  void Begin(int track, const char* name, int64_t id, const TraceArguments& arguments = {});
  void Mark(int track, const char* name, const char* what, int64_t id,
            const TraceArguments& arguments = {});
  void End(int track, const char* name, int64_t id, const TraceArguments& arguments = {});

  // Names stay across recordings.
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
  // Number of threads that are recording, so that Stop() knows when none uses the memory. A thread
  // counts itself before it checks `on_` again; Stop() waits for a thread that still finds it on.
  std::atomic<int> recording_ = 0;
  std::atomic<int64_t> next_ = 0;
  // Changed only while it is off and no thread records.
  int64_t events_max_ = 0;
  std::unique_ptr<Slot[]> slots_;
  std::atomic<int64_t> first_step_ = -1;  // first step that began while it was on
  std::atomic<int64_t> steps_ = 0;

  mutable absl::Mutex mu_;
  std::function<void()> over_ ABSL_GUARDED_BY(mu_);
  Steps made_ ABSL_GUARDED_BY(mu_);
  std::map<int, std::string> tracks_ ABSL_GUARDED_BY(mu_);
};

// Records the time from construction to destruction, if the trace is on at construction.
class TraceSpan {
 public:
  // `trace` may be null; nothing is recorded then.
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
