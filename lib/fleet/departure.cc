#include "lib/fleet/departure.h"

#include "absl/time/clock.h"
#include "glog/logging.h"
#include "lib/concurrency/steady_wait.h"

namespace muster {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(20);

}  // namespace

absl::string_view DepartureTimer::WhyOver(absl::Duration now, bool attached) {
  if (attached) attached_ = now;
  if (now >= end_) return "they did not continue without it in time";
  if (now - attached_ >= kCoordinatorAwayMax) return "there is no coordinator";
  return "";
}

void LeaveFleet(FleetClient& client, absl::Duration timeout) {
  client.Leave();
  DepartureTimer timer(SteadyNow(), timeout);
  while (!client.left()) {
    const absl::string_view over = timer.WhyOver(SteadyNow(), client.attached());
    if (!over.empty()) {
      LOG(WARNING) << "leaving jobs that still need this process: " << over;
      return;
    }
    absl::SleepFor(kLook);
  }
}

}  // namespace muster
