#include "services/coordinator/membership/fleet_clock.h"

#include <gtest/gtest.h>

namespace muster::fleet_clock_test {
namespace {

class FleetClockTest : public ::testing::Test {
 protected:
  void Pass(absl::Duration time) {
    steady_ += time;
    wall_ += time;
  }

  absl::Duration steady_ = absl::Hours(7);
  absl::Time wall_ = absl::FromUnixSeconds(1'800'000'000);
  FleetClock clock_{[this] { return steady_; }, [this] { return wall_; }};
};

TEST_F(FleetClockTest, ShowsTheTimeOfDay) {
  EXPECT_EQ(clock_.Now(), wall_);
  Pass(absl::Seconds(3));
  EXPECT_EQ(clock_.Now(), wall_);
}

TEST_F(FleetClockTest, AdjustsToAStepOfTheWallClockByATenth) {
  for (const absl::Duration step : {absl::Hours(1), -absl::Hours(1)}) {
    const absl::Time before = clock_.Now();
    wall_ += step;
    EXPECT_EQ(clock_.Now(), before);
    Pass(absl::Seconds(5));
    EXPECT_EQ(clock_.Now() - before,
              absl::Seconds(5) + (step > absl::ZeroDuration() ? 1 : -1) * absl::Milliseconds(500));
    Pass(absl::Hours(10));
    EXPECT_EQ(clock_.Now(), wall_);
  }
}

TEST_F(FleetClockTest, FollowsAWallClockThatDrifts) {
  const absl::Time before = clock_.Now();
  for (int second = 0; second < 100; ++second) {
    steady_ += absl::Seconds(1);
    wall_ += absl::Milliseconds(1010);
    ASSERT_EQ(clock_.Now(), wall_);
  }
  EXPECT_EQ(clock_.Now() - before, absl::Seconds(101));
}

}  // namespace
}  // namespace muster::fleet_clock_test
