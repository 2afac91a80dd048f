// Time and chance of a simulation: what is to happen, and when.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace muster {

// A clock that stands still while something happens and jumps to the next event after it. The same
// seed gives the same events. Not thread-safe, but for now(), which may be read while an event
// waits for what other threads do.
class SimulatedTime {
 public:
  explicit SimulatedTime(uint64_t seed) : random_(seed) {}

  absl::Time now() const { return now_; }

  // Of two events of the same time the one that was asked for first comes first.
  void After(absl::Duration delay, std::function<void()> what) {
    events_.push_back({now_ + delay, ++asked_, std::move(what)});
    std::ranges::push_heap(events_, std::greater());
  }

  // Lets the next event happen; false: there is none.
  bool Next() {
    if (events_.empty()) return false;
    std::ranges::pop_heap(events_, std::greater());
    Event event = std::move(events_.back());
    events_.pop_back();
    now_ = event.time;
    event.what();
    return true;
  }

  // ---- chance
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
