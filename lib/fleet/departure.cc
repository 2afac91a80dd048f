#include "lib/fleet/departure.h"

#include "absl/time/clock.h"
#include "glog/logging.h"
#include "lib/concurrency/steady_wait.h"

namespace muster {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(20);
// A coordinator that is restarted in order is back by then.
constexpr absl::Duration kCoordinatorAwayMax = absl::Seconds(2);

}  // namespace

void LeaveFleet(FleetClient& client, absl::Duration timeout) {
  client.Leave();
  const absl::Duration begin = SteadyNow();
  absl::Duration attached = begin;
  while (!client.left()) {
    const absl::Duration now = SteadyNow();
    if (client.attached()) attached = now;
    if (now - begin >= timeout || now - attached >= kCoordinatorAwayMax) {
      LOG(WARNING) << "leaving jobs that still need this process: "
                   << (now - begin >= timeout ? "they did not go on without it in time"
                                              : "there is no coordinator");
      return;
    }
    absl::SleepFor(kLook);
  }
}

}  // namespace muster
