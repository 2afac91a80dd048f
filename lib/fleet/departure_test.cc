#include "lib/fleet/departure.h"

#include "gtest/gtest.h"

namespace muster::departure_test {
namespace {

constexpr absl::Duration kBegin = absl::Hours(7);
constexpr absl::Duration kAwayMax = DepartureTimer::kCoordinatorAwayMax;
constexpr absl::Duration kMoment = absl::Milliseconds(1);

TEST(DepartureTimerTest, WithACoordinatorOnlyTheTimeoutEndsTheWait) {
  DepartureTimer timer(kBegin, absl::Seconds(280));
  EXPECT_EQ(timer.WhyOver(kBegin, true), "");
  EXPECT_EQ(timer.WhyOver(kBegin + absl::Seconds(280) - kMoment, true), "");
  EXPECT_EQ(timer.WhyOver(kBegin + absl::Seconds(280), true),
            "they did not continue without it in time");
}

TEST(DepartureTimerTest, WaitsForAnAbsentCoordinatorUntilAnotherCouldHaveTakenOver) {
  DepartureTimer timer(kBegin, absl::Seconds(280));
  EXPECT_EQ(timer.WhyOver(kBegin, false), "");
  EXPECT_EQ(timer.WhyOver(kBegin + absl::Seconds(10), false), "") << "one takes over within that";
  EXPECT_EQ(timer.WhyOver(kBegin + kAwayMax - kMoment, false), "");
  EXPECT_EQ(timer.WhyOver(kBegin + kAwayMax, false), "there is no coordinator");
}

TEST(DepartureTimerTest, EachAbsenceIsCountedSeparately) {
  DepartureTimer timer(kBegin, absl::Seconds(280));
  EXPECT_EQ(timer.WhyOver(kBegin + absl::Seconds(9), false), "");
  const absl::Duration back = kBegin + absl::Seconds(14);
  EXPECT_EQ(timer.WhyOver(back, true), "");
  EXPECT_EQ(timer.WhyOver(back + kAwayMax - kMoment, false), "");
  EXPECT_EQ(timer.WhyOver(back + kAwayMax, false), "there is no coordinator");
}

TEST(DepartureTimerTest, AnAbsenceDoesNotExtendTheTimeout) {
  DepartureTimer timer(kBegin, absl::Seconds(3));
  EXPECT_EQ(timer.WhyOver(kBegin + absl::Seconds(3) - kMoment, false), "");
  EXPECT_EQ(timer.WhyOver(kBegin + absl::Seconds(3), false),
            "they did not continue without it in time");
}

}  // namespace
}  // namespace muster::departure_test
