// Measures which worker delayed a step.
#pragma once

#include <chrono>
#include <cstdint>

namespace muster {

// Measures how much later than all others the last gradient of a step arrives. One chunk stands for
// the whole step. Thread-compatible. Allocates nothing.
class GateWait {
 public:
  using Clock = std::chrono::steady_clock;

  // `ranks` is the number of workers that push every step; 0 if no worker waits for another.
  explicit GateWait(int ranks) : ranks_(ranks) {}

  // Returns whether a worker can delay another one; otherwise there is nothing to measure.
  bool measures() const { return ranks_ > 1; }

  // Records the first arrival of a worker's gradient for `step`. Returns the delay if it was the
  // last of the step, else zero.
  Clock::duration Arrived(int64_t step, Clock::time_point now) {
    if (step < step_) return Clock::duration::zero();  // the step was closed without it
    if (step > step_) arrived_ = 0;
    step_ = step;
    const Clock::time_point before = last_;
    last_ = now;
    return ++arrived_ == ranks_ && measures() ? now - before : Clock::duration::zero();
  }

 private:
  int ranks_;
  int64_t step_ = -1;
  int arrived_ = 0;  // gradients of step_
  Clock::time_point last_;
};

}  // namespace muster
