// Which of several coordinators leads.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lib/fleet/channel.h"

namespace muster {

// Asks each address of `target` for its health until one serves, which is then the one to be
// dialled. Returns at once where there is only one address. UNAVAILABLE (reason "NOT_LEADER"): none
// does; the message has what the last one said. Each may take `each_max`.
absl::Status FindLeader(const CoordinatorTarget& target,
                        absl::Duration each_max = absl::Seconds(2));

}  // namespace muster
