#include "services/coordinator/job/non_finite_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace muster::non_finite_watch_test {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NonFiniteWatchTest : public ::testing::Test {
 protected:
  NonFiniteWatchTest() {
    record_.set_name("jobs/net-1");
    record_.mutable_progress()->set_total_steps(100);
    Set(v1::NON_FINITE_IGNORE);
  }

  void Set(v1::OnNonFinite policy) { record_.mutable_spec()->set_on_non_finite(policy); }
  // Returns the reason reported for the next step, or "" if none.
  std::string Step(double loss, bool skipped = false) {
    const auto remark = watch_.Take(
        {.step = next_step_++, .loss = loss, .loss_scale = 64, .skipped = skipped}, record_);
    message_ = remark ? remark->message : "";
    return remark ? remark->reason : "";
  }
  void Skip(int count) {
    for (int i = 0; i < count; ++i) EXPECT_EQ(Step(std::nan(""), /*skipped=*/true), "") << i;
  }
  NonFiniteWatch::Ruling RuleAt(int64_t step, bool because_of_data = false) {
    NonFiniteWatch::Ruling ruling = NonFiniteWatch::Rule(
        record_, {.step = step, .because_of_data = because_of_data}, "it is nan");
    if (ruling.rollback) *record_.mutable_recovery() = *ruling.rollback;
    return ruling;
  }

  v1::Job record_;
  NonFiniteWatch watch_;
  int64_t next_step_ = 0;
  std::string message_;  // the last one reported
};

TEST_F(NonFiniteWatchTest, ReportsAnIgnoredLossOncePerGeneration) {
  EXPECT_EQ(Step(1), "");
  EXPECT_EQ(Step(std::nan("")), "NONFINITE_LOSS");
  EXPECT_EQ(message_, "the loss of step 1 is nan");
  EXPECT_EQ(Step(std::numeric_limits<double>::infinity()), "");
  EXPECT_EQ(Step(1), "");
  EXPECT_EQ(Step(std::nan("")), "");
  watch_.Begin();
  EXPECT_EQ(Step(std::nan("")), "NONFINITE_LOSS");
}

TEST_F(NonFiniteWatchTest, AStepWithoutALossSaysNothing) {
  EXPECT_EQ(watch_.Take({.step = 0}, record_), std::nullopt);
  EXPECT_EQ(watch_.Completion(record_).reason, "COMPLETED");
  EXPECT_EQ(Step(std::nan("")), "NONFINITE_LOSS");
  EXPECT_EQ(watch_.Take({.step = 2}, record_), std::nullopt);
  EXPECT_EQ(watch_.Completion(record_).reason, "NONFINITE_LOSS") << "of the last known loss";
}

TEST_F(NonFiniteWatchTest, LeavesALossThatIsNotIgnoredToTheWorker) {
  Set(v1::NON_FINITE_FAIL);
  EXPECT_EQ(Step(std::nan("")), "");
  EXPECT_EQ(watch_.Completion(record_).reason, "COMPLETED");
}

TEST_F(NonFiniteWatchTest, DoesNotRepeatAReportAfterARestart) {
  watch_.Restore({.loss = std::nan("")});
  EXPECT_EQ(watch_.Completion(record_).reason, "NONFINITE_LOSS");
  EXPECT_EQ(Step(std::nan("")), "");

  watch_.Restore({.loss = std::nan(""), .skipped = true});
  EXPECT_EQ(Step(std::nan("")), "NONFINITE_LOSS");
}

TEST_F(NonFiniteWatchTest, CompletionDependsOnTheLastLoss) {
  EXPECT_EQ(watch_.Completion(record_).reason, "COMPLETED");
  EXPECT_EQ(watch_.Completion(record_).message, "trained 100 steps");
  Step(std::nan(""));
  record_.mutable_progress()->set_loss(std::nan(""));
  EXPECT_EQ(watch_.Completion(record_).reason, "NONFINITE_LOSS");
  EXPECT_THAT(watch_.Completion(record_).message,
              HasSubstr("trained 100 steps, and the last loss is nan: the parameters are of no"));
  Step(std::nan(""), /*skipped=*/true);
  EXPECT_EQ(watch_.Completion(record_).reason, "COMPLETED") << "a skipped step changes nothing";
}

TEST_F(NonFiniteWatchTest, SkippedStepsInARowAreAnAlarmOnce) {
  Set(v1::NON_FINITE_FAIL);
  Skip(NonFiniteWatch::kSkipsAlarming - 1);
  EXPECT_EQ(Step(1), "");
  Skip(NonFiniteWatch::kSkipsAlarming - 1);
  EXPECT_EQ(Step(std::nan(""), /*skipped=*/true), "STEPS_SKIPPED");
  EXPECT_THAT(
      message_,
      AllOf(HasSubstr("steps 10 to 19 were skipped"),
            HasSubstr("`muster logs net-1` names the row"),
            EndsWith("It has no checkpoint: submitted again, it starts from its beginning")));
  Skip(NonFiniteWatch::kSkipsAlarming);
  EXPECT_EQ(Step(1), "");
  record_.mutable_spec()->mutable_training()->set_precision(v1::FP16);
  Skip(NonFiniteWatch::kSkipsAlarming - 1);
  EXPECT_EQ(Step(std::nan(""), /*skipped=*/true), "LOSS_SCALE_ALARM");
  EXPECT_THAT(message_, HasSubstr("even with the loss scale at 64. Try precision: bf16"));
}

TEST_F(NonFiniteWatchTest, AJobThatOnlySkipsFailsUnlessItIgnoresThat) {
  record_.set_checkpoint("jobs/net-1/checkpoints/50");
  for (int i = 1; i < NonFiniteWatch::kSkipsMax; ++i) Step(std::nan(""), /*skipped=*/true);
  Set(v1::NON_FINITE_FAIL);
  EXPECT_FALSE(watch_.Failure(record_).has_value());
  Step(std::nan(""), /*skipped=*/true);
  ASSERT_TRUE(watch_.Failure(record_).has_value());
  EXPECT_EQ(watch_.Failure(record_)->reason, "STEPS_SKIPPED");
  EXPECT_THAT(watch_.Failure(record_)->message,
              AllOf(HasSubstr("the last 1000 steps were skipped"), EndsWith("net-1@50")));
  Set(v1::NON_FINITE_IGNORE);
  EXPECT_FALSE(watch_.Failure(record_).has_value());
}

TEST_F(NonFiniteWatchTest, AJobWithoutRollbackFailsWithAdvice) {
  record_.set_checkpoint("jobs/net-1/checkpoints/50");
  Set(v1::NON_FINITE_FAIL);
  const NonFiniteWatch::Ruling ruling = RuleAt(57);
  EXPECT_FALSE(ruling.rollback.has_value());
  EXPECT_EQ(ruling.message,
            "it is nan. Try a lower learning rate, a longer warm-up or clip: {global_norm: 1}, or "
            "leave the batch out with on_non_finite: rollback. To go on from its last checkpoint, "
            "submit it again with --set checkpoint.resume_from=net-1@50");
}

TEST_F(NonFiniteWatchTest, MessagesSayIfThereIsNoCheckpoint) {
  Set(v1::NON_FINITE_FAIL);
  EXPECT_THAT(RuleAt(7).message,
              EndsWith("It has no checkpoint: submitted again, it starts from its beginning"));
  Set(v1::NON_FINITE_ROLLBACK);
  EXPECT_EQ(RuleAt(7).message,
            "it is nan; goes back to its beginning (it has no checkpoint), without batch 7 of the "
            "data");
}

// The message has no advice about the learning rate: the data are at fault.
TEST_F(NonFiniteWatchTest, NonFiniteDataAreToBeCorrectedOrLeftOut) {
  record_.set_checkpoint("jobs/net-1/checkpoints/50");
  Set(v1::NON_FINITE_FAIL);
  EXPECT_EQ(RuleAt(57, /*because_of_data=*/true).message,
            "it is nan. Correct that row, or leave the batch out with on_non_finite: rollback. To "
            "go on from its last checkpoint, submit it again with --set "
            "checkpoint.resume_from=net-1@50");

  Set(v1::NON_FINITE_ROLLBACK);
  EXPECT_EQ(RuleAt(57, /*because_of_data=*/true).message,
            "it is nan; goes back to net-1@50, without batch 57 of the data");
  while (RuleAt(60, /*because_of_data=*/true).rollback) {
  }
  EXPECT_THAT(RuleAt(60, /*because_of_data=*/true).message,
              AllOf(HasSubstr("it was rolled back 8 times"), HasSubstr(". Correct that row. To")));
}

TEST_F(NonFiniteWatchTest, EachRollbackLeavesOutTheBatchOfItsStep) {
  record_.set_checkpoint("jobs/net-1/checkpoints/50");
  record_.mutable_recovery()->set_resumed_step(50);
  Set(v1::NON_FINITE_ROLLBACK);
  EXPECT_EQ(RuleAt(57).message, "it is nan; goes back to net-1@50, without batch 57 of the data");
  EXPECT_FALSE(record_.recovery().has_resumed_step());
  EXPECT_THAT(RuleAt(57).message, HasSubstr("without batch 58")) << "57 was left out";
  RuleAt(51);
  EXPECT_THAT(record_.recovery().left_out_batches(), ElementsAre(51, 57, 58));
  EXPECT_EQ(record_.recovery().rollbacks(), 3);

  for (int i = 3; i < NonFiniteWatch::kRollbacksMax; ++i) {
    ASSERT_TRUE(RuleAt(60).rollback.has_value()) << i;
  }
  const NonFiniteWatch::Ruling last = RuleAt(60);
  EXPECT_FALSE(last.rollback.has_value());
  EXPECT_THAT(last.message, HasSubstr("it was rolled back 8 times for that"));
}

TEST_F(NonFiniteWatchTest, ARollbackToACheckpointAfterTheStepKeepsItsBatch) {
  record_.set_checkpoint("jobs/net-1/checkpoints/50");
  Set(v1::NON_FINITE_ROLLBACK);
  EXPECT_EQ(RuleAt(49).message, "it is nan; goes back to net-1@50");
  EXPECT_THAT(record_.recovery().left_out_batches(), IsEmpty());
}

}  // namespace
}  // namespace muster::non_finite_watch_test
