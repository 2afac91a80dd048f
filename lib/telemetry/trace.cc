#include "lib/telemetry/trace.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>

namespace muster {

int64_t Trace::Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool Trace::Start(Extent extent) {
  absl::MutexLock lock(&mu_);
  if (on()) return false;
  Clear();
  events_max_ = extent.events_max;
  slots_ = std::make_unique<Slot[]>(static_cast<size_t>(extent.events_max));
  steps_ = extent.steps;
  over_ = std::move(extent.over);
  on_.store(true, std::memory_order_seq_cst);
  return true;
}

Trace::Recording Trace::Stop() {
  absl::MutexLock lock(&mu_);
  on_.store(false, std::memory_order_seq_cst);
  while (recording_.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
  Recording recording = Copy();
  Clear();
  return recording;
}

void Trace::Clear() {
  while (recording_.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
  slots_.reset();
  events_max_ = 0;
  next_ = 0;
  first_step_ = -1;
  steps_ = 0;
  over_ = nullptr;
  made_ = {};
}

Trace::Recording Trace::Read() const {
  absl::MutexLock lock(&mu_);
  return Copy();
}

Trace::Recording Trace::Copy() const {
  Recording copy{.tracks = tracks_, .dropped = dropped()};
  const int64_t taken = std::min<int64_t>(next_.load(std::memory_order_relaxed), events_max_);
  copy.events.reserve(static_cast<size_t>(taken));
  for (int64_t i = 0; i < taken; ++i) {
    if (slots_[i].filled.load(std::memory_order_acquire)) copy.events.push_back(slots_[i].event);
  }
  return copy;
}

void Trace::Record(const Event& event) {
  if (!on()) return;
  // This increment and the load of on_ pair with the store and the load in Stop(). In the single
  // order of seq_cst either this thread sees that the trace is off, or Stop() sees it recording and
  // waits. So the slots exist until the decrement below.
  recording_.fetch_add(1, std::memory_order_seq_cst);
  if (on_.load(std::memory_order_seq_cst)) {
    const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index < events_max_) {
      Slot& slot = slots_[index];
      slot.event = event;
      // Publishes the event: Read() copies only slots that it sees filled.
      slot.filled.store(true, std::memory_order_release);
    }
  }
  recording_.fetch_sub(1, std::memory_order_release);
}

void Trace::StepBegins(int64_t step) {
  if (!on()) return;
  int64_t none = -1;
  first_step_.compare_exchange_strong(none, step, std::memory_order_relaxed);
}

void Trace::StepEnds(int64_t step) {
  if (!on()) return;
  std::function<void()> over;
  {
    absl::MutexLock lock(&mu_);
    const int64_t first = first_step_.load(std::memory_order_relaxed);
    const int64_t steps = steps_.load(std::memory_order_relaxed);
    if (!on() || steps == 0 || first < 0 || step + 1 < first + steps) return;
    if (made_.end != made_.first) return;
    made_ = {.first = first, .end = step + 1};
    over = std::exchange(over_, nullptr);
  }
  // Called without mu_: no callback runs under a lock.
  if (over) over();
}

Trace::Steps Trace::over() const {
  absl::MutexLock lock(&mu_);
  return made_;
}

void Trace::Span(int track, const char* name, int64_t begin, int64_t end,
                 const TraceArguments& arguments) {
  Record({.kind = Kind::kSpan,
          .track = track,
          .name = name,
          .time = begin,
          .length = end - begin,
          .arguments = arguments});
}

void Trace::Begin(int track, const char* name, int64_t id, const TraceArguments& arguments) {
  Record({.kind = Kind::kBegin,
          .track = track,
          .name = name,
          .time = Now(),
          .id = id,
          .arguments = arguments});
}

void Trace::Mark(int track, const char* name, const char* what, int64_t id,
                 const TraceArguments& arguments) {
  Record({.kind = Kind::kMark,
          .track = track,
          .name = name,
          .what = what,
          .time = Now(),
          .id = id,
          .arguments = arguments});
}

void Trace::End(int track, const char* name, int64_t id, const TraceArguments& arguments) {
  Record({.kind = Kind::kEnd,
          .track = track,
          .name = name,
          .time = Now(),
          .id = id,
          .arguments = arguments});
}

void Trace::NameTrack(int track, std::string name) {
  absl::MutexLock lock(&mu_);
  tracks_[track] = std::move(name);
}

int64_t Trace::dropped() const {
  return std::max<int64_t>(0, next_.load(std::memory_order_relaxed) - events_max_);
}

}  // namespace muster
