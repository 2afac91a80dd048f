// The clock, the events and the random numbers of a simulation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace muster {

// A clock that stops during an event and then jumps to the next event. A seed always gives the same
// events. Not thread-safe, except now(): other threads may read it while an event waits for them.
class SimulatedTime {
 public:
  explicit SimulatedTime(uint64_t seed) : random_(seed) {}

  absl::Time now() const { return now_; }

  // Runs `what` after `delay`. Events of the same time run in the order of the calls.
  void After(absl::Duration delay, std::function<void()> what) {
    events_.push_back({now_ + delay, ++asked_, std::move(what)});
    std::ranges::push_heap(events_, std::greater());
  }

  // Runs the next event. Returns false if there is none.
  bool Next() {
    if (events_.empty()) return false;
    std::ranges::pop_heap(events_, std::greater());
    Event event = std::move(events_.back());
    events_.pop_back();
    now_ = event.time;
    event.what();
    return true;
  }

  // ---- random numbers
  int64_t Below(int64_t end) { return static_cast<int64_t>(random_() % end); }
  bool Chance(double probability) {
    return static_cast<double>(Below(1 << 20)) < probability * (1 << 20);
  }
  absl::Duration Between(absl::Duration least, absl::Duration most) {
    return least + absl::Nanoseconds(Below(absl::ToInt64Nanoseconds(most - least) + 1));
  }

 private:
  struct Event {
    absl::Time time;
    uint64_t order;
    std::function<void()> what;

    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  std::mt19937_64 random_;
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  uint64_t asked_ = 0;
  std::vector<Event> events_;  // a heap
};

}  // namespace muster
