#include "services/coordinator/checkpoints/checkpoint_retention.h"

#include <cmath>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::checkpoint_retention_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kCommitted[] = {100, 200, 250, 300, 400, 500};

StepEvaluation Losses(const std::map<int64_t, double>& losses, int64_t step) {
  const auto found = losses.find(step);
  if (found == losses.end()) return {};
  return {.kind = StepEvaluation::kKnown, .loss = found->second};
}

TEST(RetainedStepsTest, ReadsNoEvaluationsUnlessTheBestAreKept) {
  const auto nobody = [](int64_t) -> StepEvaluation {
    ADD_FAILURE() << "asked";
    return {};
  };
  EXPECT_THAT(RetainedSteps({}, kCommitted, nobody), IsEmpty());
  v1::CheckpointSpec spec;
  spec.set_keep_every_steps(200);
  EXPECT_THAT(RetainedSteps(spec, kCommitted, nobody), ElementsAre(200, 400));
}

TEST(RetainedStepsTest, KeepsTheStepsWithTheSmallestLoss) {
  v1::CheckpointSpec spec;
  spec.set_keep_best(2);
  const auto losses = [](int64_t step) {
    return Losses({{100, 3.0}, {200, 1.5}, {300, 1.2}, {400, 1.5}, {500, 2.0}}, step);
  };
  EXPECT_THAT(RetainedSteps(spec, kCommitted, losses), ElementsAre(200, 300, 400))
      << "equal ones have one place together";
  spec.set_keep_every_steps(500);
  EXPECT_THAT(RetainedSteps(spec, kCommitted, losses), ElementsAre(200, 300, 400, 500));
}

TEST(RetainedStepsTest, ANonFiniteLossIsNeverAmongTheBest) {
  v1::CheckpointSpec spec;
  spec.set_keep_best(3);
  const auto losses = [](int64_t step) {
    return Losses({{100, std::nan("")}, {200, 9.0}, {300, -HUGE_VAL}}, step);
  };
  EXPECT_THAT(RetainedSteps(spec, kCommitted, losses), ElementsAre(200));
}

TEST(RetainedStepsTest, KeepsStepsThatAreNotEvaluatedYet) {
  v1::CheckpointSpec spec;
  spec.set_keep_best(1);
  const auto losses = [](int64_t step) -> StepEvaluation {
    if (step == 500) return {.kind = StepEvaluation::kToCome};
    return Losses({{100, 1.0}, {200, 2.0}}, step);
  };
  EXPECT_THAT(RetainedSteps(spec, kCommitted, losses), ElementsAre(100, 500));
}

}  // namespace
}  // namespace muster::checkpoint_retention_test
