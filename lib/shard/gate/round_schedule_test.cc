#include "lib/shard/gate/round_schedule.h"

#include <vector>

#include "gtest/gtest.h"

namespace muster::round_schedule_test {
namespace {

std::vector<int64_t> EndsOf(const RoundSchedule& rounds) {
  std::vector<int64_t> ends;
  for (int64_t step = rounds.first_step; step < rounds.total_steps;) {
    step = rounds.EndAfter(step);
    ends.push_back(step);
  }
  return ends;
}

TEST(RoundScheduleTest, RoundsEndAtMultiplesAndWithTheJob) {
  const RoundSchedule rounds{.first_step = 3, .every = 4, .total_steps = 10};
  EXPECT_EQ(EndsOf(rounds), (std::vector<int64_t>{4, 8, 10}));
  for (int64_t step : {4, 8, 10}) EXPECT_TRUE(rounds.EndsAt(step) && rounds.IsVersion(step));
  for (int64_t step : {5, 6, 7, 9}) EXPECT_FALSE(rounds.EndsAt(step) || rounds.IsVersion(step));
  EXPECT_TRUE(rounds.IsVersion(3));
  EXPECT_FALSE(rounds.EndsAt(3));
}

TEST(RoundScheduleTest, EveryZeroIsOneRound) {
  const RoundSchedule rounds{.first_step = 3, .every = 0, .total_steps = 10};
  EXPECT_EQ(EndsOf(rounds), (std::vector<int64_t>{10}));
  for (int64_t step : {0, 4, 9}) EXPECT_FALSE(rounds.EndsAt(step));
}

TEST(RoundScheduleTest, OnlyLocalSgdHasRoundsOfSeveralSteps) {
  v1::JobPlan plan;
  plan.set_first_step(8);
  plan.mutable_spec()->mutable_sync()->set_every(4);
  EXPECT_EQ(RoundSchedule::Of(plan).first_step, 8);
  EXPECT_EQ(RoundSchedule::Of(plan).EndAfter(8), 9);
  EXPECT_TRUE(RoundSchedule::Of(plan).EndsAt(9));
  plan.mutable_spec()->mutable_sync()->set_mode(v1::LOCAL_SGD);
  EXPECT_EQ(RoundSchedule::Of(plan).EndAfter(8), 12);
  EXPECT_FALSE(RoundSchedule::Of(plan).EndsAt(9));
}

}  // namespace
}  // namespace muster::round_schedule_test
