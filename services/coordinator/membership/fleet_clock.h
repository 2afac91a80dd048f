// The clock for the leases and deadlines of the fleet.
#pragma once

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "lib/concurrency/steady_wait.h"

namespace muster {

// Shows the time of day without jumps. It follows the steady clock, and runs a tenth faster or
// slower while it is behind or ahead of the wall clock. When a time service steps the wall clock by
// some seconds, this clock has caught up within a minute. Meanwhile leases and deadlines are wrong
// by at most a tenth, and displayed times by the rest of the step. Thread-safe.
class FleetClock {
 public:
  explicit FleetClock(std::function<absl::Duration()> steady = SteadyNow,
                      std::function<absl::Time()> wall = absl::Now)
      : steady_(std::move(steady)), wall_(std::move(wall)), last_(steady_()), now_(wall_()) {}

  absl::Time Now() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const std::function<absl::Duration()> steady_;
  const std::function<absl::Time()> wall_;
  absl::Mutex mu_;
  absl::Duration last_ ABSL_GUARDED_BY(mu_);  // steady_() at `now_`
  absl::Time now_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
