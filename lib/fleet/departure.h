// How a member ends that is told to.
#pragma once

#include "absl/time/time.h"
#include "lib/fleet/fleet_client.h"

namespace muster {

// Says that the member leaves, and waits until its jobs go on without it: a worker's at the next
// step, a ps's once what it holds is in a checkpoint. At most `timeout`; not for a coordinator that
// is away.
void LeaveFleet(FleetClient& client, absl::Duration timeout);

}  // namespace muster
