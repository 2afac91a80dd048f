#include "services/worker/training/device_team.h"

#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "lib/status/status.h"

namespace muster::device_team_test {
namespace {

TEST(DeviceTeamTest, ReportsALostDeviceFirstThenOtherFailuresThenAnInterruption) {
  const absl::Status interrupted = absl::AbortedError("interrupted");
  const absl::Status failed = absl::InvalidArgumentError("id 7 is outside [0, 5)");
  const absl::Status late = absl::DeadlineExceededError("device 3 does not come");
  const absl::Status lost = WithReason(absl::InternalError("cuda:3 is lost"), "DEVICE_LOST");
  DeviceTeam team(4);
  const auto run = [&](const std::vector<absl::Status>& results) {
    return team.Run([&](int device) { return results[device]; });
  };
  const absl::Status ok;
  EXPECT_EQ(run({ok, ok, ok, ok}), ok);
  EXPECT_EQ(run({ok, interrupted, ok, ok}), interrupted);
  EXPECT_EQ(run({ok, interrupted, failed, late}), failed);
  EXPECT_EQ(run({interrupted, failed, late, lost}), lost);
}

}  // namespace
}  // namespace muster::device_team_test
