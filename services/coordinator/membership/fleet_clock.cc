#include "services/coordinator/membership/fleet_clock.h"

#include <algorithm>

namespace muster {

absl::Time FleetClock::Now() {
  absl::MutexLock lock(&mu_);
  const absl::Duration steady = steady_();
  const absl::Duration elapsed = steady - last_;
  last_ = steady;
  now_ += elapsed;
  const absl::Duration correction_max = elapsed / 10;
  now_ += std::clamp(wall_() - now_, -correction_max, correction_max);
  return now_;
}

}  // namespace muster
