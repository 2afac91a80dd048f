// Who held up a step.
#pragma once

#include <chrono>
#include <cstdint>

namespace muster {

// Of the gradients that a step waits for, how much later than all others the last one came. One
// chunk stands for the step. Thread-compatible; nothing is allocated.
class GateWait {
 public:
  using Clock = std::chrono::steady_clock;

  // Of so many workers.
  explicit GateWait(int ranks) : ranks_(ranks) {}

  // Whether anybody can hold up another one: else there is nothing to measure.
  bool measures() const { return ranks_ > 1; }

  // Somebody's gradient of `step` came, for the first time. Zero unless it was the last one.
  Clock::duration Arrived(int64_t step, Clock::time_point now) {
    if (step < step_) return Clock::duration::zero();  // that one was closed without it
    if (step > step_) arrived_ = 0;
    step_ = step;
    const Clock::time_point before = last_;
    last_ = now;
    return ++arrived_ == ranks_ && measures() ? now - before : Clock::duration::zero();
  }

 private:
  int ranks_;
  int64_t step_ = -1;
  int arrived_ = 0;  // of it
  Clock::time_point last_;
};

}  // namespace muster
