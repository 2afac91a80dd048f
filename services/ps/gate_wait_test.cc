#include "services/ps/gate_wait.h"

#include "gtest/gtest.h"

namespace muster::gate_wait_test {
namespace {

using std::chrono::milliseconds;

GateWait::Clock::time_point At(int64_t ms) { return GateWait::Clock::time_point(milliseconds(ms)); }

TEST(GateWaitTest, WaitBeginsWithTheLastButOneArrival) {
  GateWait wait(3);
  EXPECT_EQ(wait.Arrived(7, At(100)), milliseconds(0));
  EXPECT_EQ(wait.Arrived(7, At(130)), milliseconds(0));
  EXPECT_EQ(wait.Arrived(7, At(150)), milliseconds(20));
  EXPECT_EQ(wait.Arrived(8, At(151)), milliseconds(0));
  EXPECT_EQ(wait.Arrived(8, At(152)), milliseconds(0));
  EXPECT_EQ(wait.Arrived(8, At(250)), milliseconds(98));
}

TEST(GateWaitTest, StepThatClosedWithoutARankHasNoWait) {
  GateWait wait(3);
  EXPECT_TRUE(wait.measures());
  wait.Arrived(1, At(0));
  wait.Arrived(1, At(1));
  wait.Arrived(2, At(2));
  EXPECT_EQ(wait.Arrived(1, At(900)), milliseconds(0)) << "the late push of a backup worker";
  wait.Arrived(2, At(903));
  EXPECT_EQ(wait.Arrived(2, At(905)), milliseconds(2));
}

TEST(GateWaitTest, SingleWorkerDelaysNoOther) {
  GateWait wait(1);
  EXPECT_FALSE(wait.measures());
  EXPECT_EQ(wait.Arrived(0, At(0)), milliseconds(0));
  EXPECT_EQ(wait.Arrived(1, At(500)), milliseconds(0));
}

}  // namespace
}  // namespace muster::gate_wait_test
