// Finds the coordinator that leads.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lib/fleet/channel.h"

namespace muster {

// Asks each address of `target` for its health until one serves; that one is dialled from then on.
// Blocks for up to `each_max` per address. Returns at once if there is only one address. Returns
// UNAVAILABLE (reason "NOT_LEADER") if none leads; the message quotes the last answer.
absl::Status FindLeader(const CoordinatorTarget& target,
                        absl::Duration each_max = absl::Seconds(2));

}  // namespace muster
