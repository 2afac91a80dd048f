// Takes a member out of its jobs before it ends.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "lib/fleet/fleet_client.h"

namespace muster {

// Bounds the wait of a leaving member whose jobs still need it: `timeout` in all, and
// kCoordinatorAwayMax for each absence of the coordinator. In that time a coordinator that failed
// is replaced or restarted. If none has come back, the whole cluster is probably stopping.
class DepartureTimer {
 public:
  static constexpr absl::Duration kCoordinatorAwayMax = absl::Seconds(15);

  // Times are those of SteadyNow().
  DepartureTimer(absl::Duration begin, absl::Duration timeout)
      : end_(begin + timeout), attached_(begin) {}

  // Returns why the wait is over, or "" while it lasts. `attached`: a coordinator is attached at
  // `now`.
  absl::string_view WhyOver(absl::Duration now, bool attached);

 private:
  const absl::Duration end_;
  absl::Duration attached_;  // the last time a coordinator was attached
};

// Announces that the member leaves, and blocks until its jobs continue without it. A worker's job
// needs the next step for that; a ps's needs a checkpoint of what the ps holds. Returns at once if
// the member serves no job, and at the latest when a DepartureTimer says so.
void LeaveFleet(FleetClient& client, absl::Duration timeout);

}  // namespace muster
