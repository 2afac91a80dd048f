#include "lib/concurrency/poll_budget.h"

#include <chrono>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace muster::poll_budget_test {
namespace {

using namespace std::chrono_literals;

// Uses a fake clock, and a fake machine of four processors with a given load.
class PollBudgetTest : public testing::Test {
 protected:
  PollBudgetTest() { SetRunnable(1); }

  PollBudgetOptions Options(double share) {
    return {.share = share, .load_file = load_file_, .machine_cpus = 4};
  }
  void SetRunnable(int threads) {
    std::ofstream(load_file_) << absl::StrCat("0.93 0.71 0.55 ", threads, "/154 13599\n");
  }

  // Simulates one wait that polls in turns of 1 us and succeeds after `needed`. Returns how long it
  // polled.
  std::chrono::nanoseconds Wait(PollBudget& budget, std::chrono::nanoseconds needed = 1h) {
    if (!budget.Begin(now_)) return 0ns;
    const PollBudget::Time begin = now_;
    while (now_ - begin < needed && budget.MayPoll(now_)) now_ += 1us;
    budget.End(now_, now_ - begin >= needed);
    return now_ - begin;
  }

  const std::string load_file_ =
      testing::TempDir() + "/load." + testing::UnitTest::GetInstance()->current_test_info()->name();
  PollBudget::Time now_{1h};
};

TEST_F(PollBudgetTest, AWaitPollsUntilItsConditionHolds) {
  PollBudget budget(Options(1));
  EXPECT_EQ(Wait(budget, 12us), 12us);
}

TEST_F(PollBudgetTest, AWaitInVainPollsNoLongerThanTheMaximum) {
  PollBudget budget(Options(1));
  EXPECT_EQ(Wait(budget), 50us);
}

TEST_F(PollBudgetTest, WithoutAShareAWaitSleepsAtOnce) {
  PollBudget budget(Options(0));
  EXPECT_EQ(Wait(budget, 1us), 0us);
}

TEST_F(PollBudgetTest, OneUsableProcessorLeavesNothingToPollWith) {
  EXPECT_EQ(PollShare(1, 0, 1), 0);
  EXPECT_EQ(PollShare(1.5, 0, 1), 0);
}

TEST_F(PollBudgetTest, ThreadsThatComputeComeFirstAndPollersShareTheRest) {
  EXPECT_EQ(PollShare(2, 0, 1), 1);
  EXPECT_EQ(PollShare(2, 1, 1), 1);
  EXPECT_EQ(PollShare(2, 2, 1), 0);
  EXPECT_DOUBLE_EQ(PollShare(2.5, 2, 1), 0.5);
  EXPECT_DOUBLE_EQ(PollShare(4, 3, 2), 0.5);
  EXPECT_EQ(PollShare(8, 16, 4), 0);
}

TEST_F(PollBudgetTest, PollingStaysWithinItsShareOfTheTime) {
  PollBudget budget(Options(0.25));
  const PollBudget::Time start = now_;
  std::chrono::nanoseconds polled = 0ns;
  while (now_ - start < 1s) {
    polled += Wait(budget, 40us);
    now_ += 1us;  // a message is always due soon: without a limit it would poll 97 % of the time
  }
  EXPECT_GT(polled, 240ms);
  EXPECT_LT(polled, 270ms);
}

TEST_F(PollBudgetTest, DoesNotPollOnAnOverloadedMachine) {
  PollBudget budget(Options(1));
  SetRunnable(5);
  EXPECT_EQ(Wait(budget, 10us), 0us);
  SetRunnable(4);
  now_ += 3ms;
  EXPECT_EQ(Wait(budget, 10us), 10us);
}

TEST_F(PollBudgetTest, AnUnreadableLoadLimitsNothing) {
  PollBudgetOptions options = Options(1);
  options.load_file = "/nowhere";
  PollBudget budget(options);
  EXPECT_EQ(Wait(budget, 10us), 10us);
}

TEST_F(PollBudgetTest, StopsPollingForAWhileAfterAGap) {
  PollBudget budget(Options(1));
  ASSERT_TRUE(budget.Begin(now_));
  ASSERT_TRUE(budget.MayPoll(now_ += 1us));
  EXPECT_FALSE(budget.MayPoll(now_ += 40us));
  budget.End(now_, false);

  EXPECT_EQ(Wait(budget, 10us), 0us);
  now_ += 11ms;
  EXPECT_EQ(Wait(budget, 10us), 10us);
}

TEST_F(PollBudgetTest, PollsRarelyAfterWaitsInVainUntilItPaysAgain) {
  PollBudget budget(Options(1));
  int polled = 0;
  for (int i = 0; i < 1000; ++i) {
    polled += Wait(budget) > 0ns;
    now_ += 1ms;
  }
  EXPECT_GT(polled, 8 + 1000 / 20);
  EXPECT_LT(polled, 8 + 1000 / 12);

  int tries = 0;
  while (Wait(budget, 10us) == 0us) ASSERT_LT(++tries, 20);
  EXPECT_EQ(Wait(budget, 10us), 10us);
}

TEST_F(PollBudgetTest, RegardlessPollsOnABusyMachineWithoutAShare) {
  PollBudgetOptions options = Options(0);
  options.regardless = true;
  PollBudget budget(options);
  SetRunnable(100);
  EXPECT_EQ(Wait(budget), 50us);
}

TEST_F(PollBudgetTest, TheModesAreReadAndSet) {
  EXPECT_EQ(*ParsePollMode("auto"), PollMode::kAuto);
  EXPECT_EQ(*ParsePollMode("never"), PollMode::kNever);
  EXPECT_EQ(ParsePollMode("often").status().message(),
            "must be auto, always or never (is 'often')");
  EXPECT_TRUE(PollingOf(PollMode::kAlways, 100, 1).regardless);
  EXPECT_EQ(PollingOf(PollMode::kNever, 0, 1).share, 0);
  EXPECT_EQ(PollingOf(PollMode::kAuto, 1 << 20, 1).share, 0);
}

TEST_F(PollBudgetTest, PollUntilAsksAtLeastOnceAndStopsAtItsLimit) {
  PollBudget sleeper(Options(0)), poller(Options(1));
  int asked = 0;
  EXPECT_TRUE(sleeper.PollUntil([&] { return ++asked == 1; }, 1h));
  EXPECT_FALSE(sleeper.PollUntil([] { return false; }, 1h));
  EXPECT_TRUE(poller.PollUntil([&] { return ++asked >= 3; }, 1h) || asked >= 2);
  EXPECT_FALSE(poller.PollUntil([] { return false; }, 0ns));
}

}  // namespace
}  // namespace muster::poll_budget_test
