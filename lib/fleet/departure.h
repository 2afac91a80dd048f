// How a member ends that is told to.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "lib/fleet/fleet_client.h"

namespace muster {

// How long a member that leaves waits while its jobs still need it: for `timeout` in all, and for a
// coordinator that is away no longer than kCoordinatorAwayMax at a time. By then another one has
// taken over, or this one was started again; where everything is told to stop none comes.
class DepartureTimer {
 public:
  static constexpr absl::Duration kCoordinatorAwayMax = absl::Seconds(15);

  // Times are SteadyNow()'s.
  DepartureTimer(absl::Duration begin, absl::Duration timeout)
      : end_(begin + timeout), attached_(begin) {}

  // Why it waits no longer; "" while it does. `attached`: there is a coordinator at `now`.
  absl::string_view WhyOver(absl::Duration now, bool attached);

 private:
  const absl::Duration end_;
  absl::Duration attached_;  // when a coordinator was last there
};

// Says that the member leaves, and waits until its jobs go on without it: a worker's at the next
// step, a ps's once what it holds is in a checkpoint. One that serves no job waits for nobody,
// any other as long as a DepartureTimer allows.
void LeaveFleet(FleetClient& client, absl::Duration timeout);

}  // namespace muster
