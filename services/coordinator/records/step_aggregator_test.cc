#include "services/coordinator/records/step_aggregator.h"

#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "services/coordinator/common/proto_time.h"

namespace muster::step_aggregator_test {
namespace {

constexpr int kBatch = 8;

class StepAggregatorTest : public testing::Test {
 protected:
  StepAggregatorTest() {
    plan_.mutable_spec()->mutable_data()->set_batch_size(kBatch);
    plan_.add_workers()->set_samples(kBatch);
    aggregator_.Begin(plan_, 0);
  }

  // Makes the next step, `seconds` after the previous one. Returns the speed that is shown.
  double Step(double seconds) {
    now_ += absl::Seconds(seconds);
    v1::JobReport report;
    v1::StepRecord& record = *report.add_steps();
    record.set_step(aggregator_.steps_before());
    record.set_step_seconds(seconds);
    *record.mutable_time() = ToProto(now_);
    aggregator_.Take(0, report);
    const std::vector<StepSummary> steps = aggregator_.TakeSteps();
    EXPECT_EQ(steps.size(), 1);
    return steps.empty() ? 0 : steps[0].samples_per_second;
  }

  v1::JobPlan plan_;
  StepAggregator aggregator_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
};

TEST_F(StepAggregatorTest, ASlowFirstStepDoesNotAffectTheMean) {
  EXPECT_DOUBLE_EQ(Step(4), kBatch / 4.0);  // only one step is known
  EXPECT_NEAR(Step(0.01), kBatch / 0.01, 1);
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(Step(0.01), kBatch / 0.01, 1);
}

TEST_F(StepAggregatorTest, TheFirstSecondsCountEqually) {
  Step(1);
  Step(0.1);
  EXPECT_NEAR(Step(0.3), kBatch / 0.25, 1e-3);  // weighted by time: 0.1 of 0.4 s at 0.1, 0.3 at 0.3
}

TEST_F(StepAggregatorTest, ForgetsStepsOlderThanAFewSeconds) {
  Step(1);
  for (int i = 0; i < 10; ++i) Step(1);
  double rate = 0;
  for (int i = 0; i < 300; ++i) rate = Step(0.1);
  EXPECT_NEAR(rate, kBatch / 0.1, 0.5);
}

TEST_F(StepAggregatorTest, ARepeatedEvaluationIsShownButNotRecordedTwice) {
  v1::JobReport report;
  v1::EvaluationRecord& record = *report.add_evaluations();
  record.set_step(20);
  record.set_loss_sum(6);
  record.set_samples(4);
  aggregator_.SkipEvaluationsBefore(40);
  aggregator_.Take(0, report);
  EXPECT_TRUE(aggregator_.TakeEvaluations().empty());
  const auto again = aggregator_.TakeEvaluationMadeAgain();
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->step, 20);
  EXPECT_EQ(again->loss, 1.5);
  EXPECT_FALSE(aggregator_.TakeEvaluationMadeAgain().has_value());

  v1::JobProgress progress;
  ApplyEvaluation(*again, progress);
  ApplyPosition(20, progress);
  EXPECT_TRUE(progress.has_evaluation_loss());
  ApplyPosition(19, progress);
  EXPECT_FALSE(progress.has_evaluation_loss()) << "it is of a later step";
}

TEST_F(StepAggregatorTest, DurableRecordsStayDurableInTheNextGeneration) {
  EXPECT_TRUE(aggregator_.all_durable());
  Step(1);
  Step(1);
  EXPECT_FALSE(aggregator_.all_durable());
  aggregator_.SetDurable({.steps = 1});
  aggregator_.Begin(plan_, 2);
  EXPECT_FALSE(aggregator_.all_durable()) << "the second step is not on the disk";
  aggregator_.SetDurable({.steps = 2});
  aggregator_.SetDurable({.steps = 1});
  EXPECT_TRUE(aggregator_.all_durable()) << "what was told before comes late";

  aggregator_.Begin(plan_, 7);
  EXPECT_TRUE(aggregator_.all_durable()) << "steps up to 7 are in another job's log";
  EXPECT_EQ(aggregator_.durable().steps, 7);
}

TEST_F(StepAggregatorTest, RepeatsDetectsOnlyDurableRecords) {
  Step(1);
  Step(1);
  v1::JobReport report;
  EXPECT_FALSE(aggregator_.Repeats(report));
  report.add_steps()->set_step(1);
  aggregator_.SetDurable({.steps = 1});
  EXPECT_FALSE(aggregator_.Repeats(report));
  aggregator_.SetDurable({.steps = 2});
  EXPECT_TRUE(aggregator_.Repeats(report));
  report.clear_steps();
  report.add_evaluations()->set_step(1);
  EXPECT_FALSE(aggregator_.Repeats(report));
  aggregator_.SetDurable({.evaluations = 2});
  EXPECT_TRUE(aggregator_.Repeats(report));
}

v1::JobReport StepReport(std::vector<std::pair<int64_t, double>> losses) {
  v1::JobReport report;
  for (const auto& [step, loss] : losses) {
    v1::StepRecord& record = *report.add_steps();
    record.set_step(step);
    record.set_loss_share(loss);
    record.set_step_seconds(0.5);
    record.mutable_time()->set_seconds(100 + step);
  }
  return report;
}

// A worker that abandoned a step knows its loss, but not the sum of all gradients.
TEST_F(StepAggregatorTest, AnAbandonedStepIsTakenUnlessItIsMadeAgain) {
  for (const bool is_made_again : {true, false}) {
    aggregator_ = {};
    aggregator_.Begin(plan_, 0);
    v1::JobReport report = StepReport({{0, 3}, {1, 2}});
    report.mutable_steps(1)->set_gradient_norm(std::numeric_limits<double>::quiet_NaN());
    aggregator_.Take(0, report);
    EXPECT_EQ(aggregator_.TakeSteps(/*may_be_given_up=*/true).size(), 1);
    const int64_t first_step = is_made_again ? 1 : 2;
    const std::vector<StepSummary> closed = aggregator_.CloseSteps(first_step);
    EXPECT_EQ(closed.size(), is_made_again ? 0 : 1);
    aggregator_.Begin(plan_, first_step);
    report = StepReport({{1, 2}});
    report.mutable_steps(0)->set_gradient_norm(5);
    aggregator_.Take(0, report);
    const std::vector<StepSummary> again = aggregator_.TakeSteps();
    ASSERT_EQ(again.size(), is_made_again ? 1 : 0);
    if (is_made_again) {
      EXPECT_EQ(again[0].gradient_norm, 5);
    }
  }
}

// A skipped step, for example, was made and is not made again.
TEST_F(StepAggregatorTest, AStepWithASuccessorWasNotAbandoned) {
  v1::JobReport report = StepReport({{0, 3}, {1, 2}, {2, 1}});
  report.mutable_steps(1)->set_gradient_norm(std::numeric_limits<double>::quiet_NaN());
  aggregator_.Take(0, report);
  EXPECT_EQ(aggregator_.TakeSteps(/*may_be_given_up=*/true).size(), 3);
}

// Makes a plan with a batch of 16 and one worker for each element of `samples`.
v1::JobPlan PlanOf(std::initializer_list<int64_t> samples) {
  v1::JobPlan plan;
  plan.mutable_spec()->mutable_data()->set_batch_size(16);
  for (const int64_t of_worker : samples) plan.add_workers()->set_samples(of_worker);
  return plan;
}

TEST(StepAggregatorOfRanksTest, AStepIsKnownWhenEveryRankHasReportedIt) {
  StepAggregator aggregator;
  aggregator.Begin(PlanOf({8, 8}), /*next_step=*/5);

  v1::JobReport later = StepReport({{5, 0.5}, {6, 0.25}});
  later.mutable_steps(0)->mutable_time()->set_seconds(200);
  aggregator.Take(1, later);
  EXPECT_TRUE(aggregator.TakeSteps().empty());
  aggregator.Take(0, StepReport({{4, 9.0}, {5, 1.0}}));
  const auto steps = aggregator.TakeSteps();

  ASSERT_EQ(steps.size(), 1);
  EXPECT_EQ(steps[0].step, 5);
  EXPECT_EQ(steps[0].loss, 1.5);
  EXPECT_EQ(steps[0].samples_per_second, 32);
  EXPECT_EQ(steps[0].time, absl::FromUnixSeconds(200)) << "of the last one";
  EXPECT_EQ(aggregator.steps_before(), 6);
}

TEST(StepAggregatorOfRanksTest, RepeatedRecordsAreNotCountedTwice) {
  StepAggregator aggregator;
  aggregator.Begin(PlanOf({16}), 0);
  aggregator.Take(0, StepReport({{0, 1.0}}));
  ASSERT_EQ(aggregator.TakeSteps().size(), 1);

  aggregator.Take(0, StepReport({{0, 1.0}, {1, 2.0}}));
  const auto steps = aggregator.TakeSteps();

  ASSERT_EQ(steps.size(), 1);
  EXPECT_EQ(steps[0].step, 1);
}

TEST(StepAggregatorOfRanksTest, AStepThatSomeRanksMissedIsTheMeanOfTheOthers) {
  StepAggregator aggregator;
  aggregator.Begin(PlanOf({8, 4, 4}), 0);
  v1::JobReport missed;
  missed.add_steps()->set_missed(true);
  v1::JobReport overtaken = StepReport({{0, 0.5}});
  overtaken.mutable_steps(0)->set_gradient_norm(std::nan(""));
  v1::JobReport computed = StepReport({{0, 1.0}});
  computed.mutable_steps(0)->set_gradient_norm(3);

  aggregator.Take(1, missed);
  aggregator.Take(1, missed);
  aggregator.Take(0, computed);
  aggregator.Take(2, overtaken);
  const auto steps = aggregator.TakeSteps();

  ASSERT_EQ(steps.size(), 1);
  EXPECT_DOUBLE_EQ(*steps[0].loss, (1.0 + 0.5) / 0.75);
  EXPECT_EQ(steps[0].gradient_norm, 3) << "an overtaken worker does not know it";
}

// A job with two workers and a program that evaluates.
class ProgramEvaluationTest : public ::testing::Test {
 protected:
  ProgramEvaluationTest() {
    v1::JobPlan plan = PlanOf({8, 8});
    plan.mutable_spec()->mutable_model()->mutable_external();
    aggregator_.Begin(plan, 0);
  }

  // Takes a report of one evaluation with 10 samples. Returns whether a result is new.
  bool Evaluate(int rank, int64_t step, double top1, double loss = 0) {
    v1::JobReport report;
    v1::EvaluationRecord& record = *report.add_evaluations();
    record.set_step(step);
    record.set_samples(10);
    (*record.mutable_metric_sums())["top1"] = 10 * top1;
    record.set_loss_sum(10 * loss);
    aggregator_.Take(rank, report);
    recorded_ = aggregator_.TakeEvaluations();
    aggregator_.TakeEvaluationMadeAgain();
    return aggregator_.TakeResultIsNew();
  }

  StepAggregator aggregator_;
  std::vector<EvaluationSummary> recorded_;
};

TEST_F(ProgramEvaluationTest, TheResultIsTheMeanOverAllWorkers) {
  EXPECT_FALSE(Evaluate(0, 7, 0.5, 2));
  EXPECT_FALSE(aggregator_.result());
  EXPECT_TRUE(Evaluate(1, 7, 1, 4));
  ASSERT_TRUE(aggregator_.result());
  EXPECT_EQ(aggregator_.result()->step, 7);
  EXPECT_EQ(aggregator_.result()->samples, 20);
  EXPECT_EQ(aggregator_.result()->metrics, (MetricMeans{{"loss", 3}, {"top1", 0.75}}));
  ASSERT_EQ(recorded_.size(), 1);
  EXPECT_EQ(recorded_[0].loss, 3);

  EXPECT_FALSE(Evaluate(0, 7, 0.5, 2)) << "the worker has not heard of the result yet";
  EXPECT_TRUE(aggregator_.result());
  EXPECT_FALSE(Evaluate(0, 8, 1));
  EXPECT_EQ(aggregator_.result()->step, 7);
  EXPECT_TRUE(Evaluate(1, 8, 1));
  EXPECT_EQ(aggregator_.result()->metrics, (MetricMeans{{"top1", 1}})) << "no loss was told";
  EXPECT_EQ(recorded_.at(0).loss, std::nullopt);
}

TEST_F(ProgramEvaluationTest, ALaterEvaluationOfTheSameStepReplacesTheFirst) {
  Evaluate(0, 7, 0.5);
  EXPECT_TRUE(Evaluate(1, 7, 0.5));
  EXPECT_FALSE(Evaluate(0, 7, 1));
  EXPECT_FALSE(aggregator_.result()) << "worker 0 waits for the second result";
  EXPECT_FALSE(Evaluate(1, 7, 0.5)) << "a repeated record of the first one";
  EXPECT_TRUE(Evaluate(1, 7, 0.8));
  ASSERT_TRUE(aggregator_.result());
  EXPECT_EQ(aggregator_.result()->metrics, (MetricMeans{{"top1", 0.9}}));
  EXPECT_TRUE(recorded_.empty()) << "the log has one evaluation of a step";
}

TEST_F(ProgramEvaluationTest, ARecoveryEndsTheWaitForLostWorkers) {
  Evaluate(0, 7, 0.5);
  const auto closed = aggregator_.CloseEvaluations(7);
  ASSERT_EQ(closed.size(), 1);
  EXPECT_TRUE(aggregator_.TakeResultIsNew());
  EXPECT_EQ(aggregator_.result()->metrics, (MetricMeans{{"top1", 0.5}}));
  EXPECT_EQ(aggregator_.result()->samples, 10);
  EXPECT_FALSE(Evaluate(1, 7, 1)) << "worker 1 was still evaluating";
  EXPECT_TRUE(aggregator_.result()) << "it learns the result that the others have";
}

TEST_F(ProgramEvaluationTest, NewWorkersNeedNotEvaluateTheirFirstStep) {
  aggregator_.ExcuseFromEvaluation(7, {1});
  EXPECT_TRUE(Evaluate(0, 7, 0.5)) << "worker 1 already trains step 7";
  EXPECT_EQ(aggregator_.result()->samples, 10);
  EXPECT_FALSE(Evaluate(0, 8, 0.5)) << "that one both can make";
}

TEST_F(ProgramEvaluationTest, NewWorkersNeedNotEvaluateStepsBeforeTheirFirst) {
  aggregator_.ExcuseFromEvaluation(8, {1});
  EXPECT_TRUE(Evaluate(0, 7, 0.5)) << "step 7 was complete when worker 1 came";
  EXPECT_EQ(aggregator_.result()->samples, 10);
}

TEST_F(ProgramEvaluationTest, AWorkerThatHasFinishedTheStepSendsNoPartAnyMore) {
  EXPECT_FALSE(Evaluate(0, 7, 0.5));
  v1::JobReport report;
  report.add_steps()->set_step(7);
  aggregator_.Take(1, report);
  aggregator_.TakeEvaluations();
  EXPECT_TRUE(aggregator_.TakeResultIsNew()) << "the program of worker 1 was replaced";
  EXPECT_EQ(aggregator_.result()->samples, 10);
}

TEST_F(ProgramEvaluationTest, ARestoredResultAnswersRepeatedRecords) {
  aggregator_.SkipEvaluationsBefore(8);
  aggregator_.RestoreResult({.step = 7, .time = absl::FromUnixSeconds(60), .samples = 20});
  v1::JobReport report;
  report.add_evaluations()->set_step(7);
  report.mutable_evaluations(0)->mutable_time()->set_seconds(59);
  aggregator_.Take(0, report);
  EXPECT_TRUE(aggregator_.result());
  report.mutable_evaluations(0)->mutable_time()->set_seconds(70);
  aggregator_.Take(0, report);
  EXPECT_FALSE(aggregator_.result()) << "the program evaluates again";
}

TEST(StepAggregatorOfRanksTest, ALossIsTheMeanOverTheRanksThatToldOne) {
  StepAggregator aggregator;
  aggregator.Begin(PlanOf({8, 4, 4}), 0);
  v1::JobReport silent = StepReport({{0, 7}, {1, 7}});  // the shares have no meaning
  for (v1::StepRecord& record : *silent.mutable_steps()) record.set_has_no_loss(true);
  v1::JobReport telling = StepReport({{0, 0.5}, {1, 0}});
  telling.mutable_steps(1)->set_has_no_loss(true);

  aggregator.Take(0, silent);
  aggregator.Take(0, silent);
  aggregator.Take(1, telling);
  aggregator.Take(2, silent);
  const auto steps = aggregator.TakeSteps();

  ASSERT_EQ(steps.size(), 2);
  EXPECT_EQ(steps[0].loss, 0.5 / 0.25);
  EXPECT_EQ(steps[1].loss, std::nullopt) << "neither 0 nor NaN";

  v1::JobProgress progress;
  for (const StepSummary& step : steps) ApplyStep(step, 16, absl::UnixEpoch(), progress);
  EXPECT_EQ(progress.step(), 2);
  EXPECT_EQ(progress.loss(), 2) << "the last one that is known";
  EXPECT_EQ(progress.first_loss(), 2);
}

TEST(StepAggregatorOfRanksTest, TheFirstKnownLossIsTheFirst) {
  v1::JobProgress progress;
  ApplyStep({.step = 0}, 16, absl::UnixEpoch(), progress);
  EXPECT_EQ(progress.first_loss(), 0);
  ApplyStep({.step = 1, .loss = 5}, 16, absl::UnixEpoch(), progress);
  ApplyStep({.step = 2, .loss = 4}, 16, absl::UnixEpoch(), progress);
  EXPECT_EQ(progress.first_loss(), 5);
  EXPECT_EQ(progress.loss(), 4);
}

TEST(StepAggregatorOfRanksTest, MetricsAreMeansOverTheRanksThatToldThem) {
  StepAggregator aggregator;
  aggregator.Begin(PlanOf({8, 8}), 0);
  v1::JobReport first = StepReport({{0, 1}}), second = StepReport({{0, 1}});
  auto& shares = *first.mutable_steps(0)->mutable_metric_shares();
  shares["accuracy"] = 0.25;
  shares["perplexity"] = 3;
  shares[std::string(65, 'x')] = 1;  // too long
  (*second.mutable_steps(0)->mutable_metric_shares())["accuracy"] = 0.5;
  for (int i = 0; i < 100; ++i) {
    (*second.mutable_steps(0)->mutable_metric_shares())[absl::StrCat("more-", i)] = 1;
  }

  aggregator.Take(0, first);
  aggregator.Take(0, first);
  aggregator.Take(1, second);
  const auto steps = aggregator.TakeSteps();

  ASSERT_EQ(steps.size(), 1);
  EXPECT_EQ(steps[0].metrics.size(), 32);
  EXPECT_EQ(steps[0].metrics.at("accuracy"), 0.75);
  EXPECT_EQ(steps[0].metrics.at("perplexity"), 6);
  v1::JobProgress progress;
  ApplyStep(steps[0], 16, absl::UnixEpoch(), progress);
  EXPECT_EQ(progress.metrics().at("perplexity"), 6);
}

TEST(StepAggregatorOfRanksTest, EvaluationsAddUpOverRanksThatMayHaveNoSamples) {
  StepAggregator aggregator;
  aggregator.Begin(PlanOf({8, 8}), 0);
  v1::JobReport some, none;
  v1::EvaluationRecord& record = *some.add_evaluations();
  record.set_step(10);
  record.set_loss_sum(30);
  record.set_correct(5);
  record.set_samples(20);
  record.set_has_accuracy(true);
  record.mutable_time()->set_seconds(60);
  none.add_evaluations()->set_step(10);
  none.mutable_evaluations(0)->mutable_time()->set_seconds(70);

  aggregator.Take(0, some);
  EXPECT_TRUE(aggregator.TakeEvaluations().empty());
  aggregator.Take(1, none);
  const auto evaluations = aggregator.TakeEvaluations();

  ASSERT_EQ(evaluations.size(), 1);
  EXPECT_EQ(evaluations[0].loss, 1.5);
  EXPECT_EQ(evaluations[0].accuracy, 0.25);
  EXPECT_EQ(evaluations[0].time, absl::FromUnixSeconds(70)) << "of the last one";
  EXPECT_EQ(aggregator.evaluations_before(), 11);
}

// Records that a worker dropped never come, if the coordinator that allowed it lost them later.
TEST(StepAggregatorOfRanksTest, SkipsAndReportsStepsThatARankHasDropped) {
  StepAggregator aggregator;
  aggregator.Begin(PlanOf({8, 8}), 5);

  aggregator.Take(0, StepReport({{7, 0.5}, {8, 0.5}, {9, 0.5}}));
  aggregator.Take(1, StepReport({{8, 0.5}, {9, 0.5}}));
  const auto steps = aggregator.TakeSteps();

  ASSERT_EQ(steps.size(), 2);
  EXPECT_EQ(steps[0].step, 8);
  EXPECT_EQ(aggregator.steps_before(), 10);
  const std::optional<StepGap> gap = aggregator.TakeGap();
  ASSERT_TRUE(gap.has_value());
  EXPECT_EQ(gap->first, 5);
  EXPECT_EQ(gap->last, 7);
  EXPECT_FALSE(aggregator.TakeGap().has_value()) << "told once";
}

TEST(StepAggregatorOfRanksTest, ARankThatIsAheadLeavesNoGap) {
  StepAggregator aggregator;
  aggregator.Begin(PlanOf({8, 8}), 0);

  aggregator.Take(0, StepReport({{0, 0.5}, {1, 0.5}, {2, 0.5}}));
  aggregator.Take(1, v1::JobReport());
  aggregator.Take(1, StepReport({{0, 0.5}}));

  EXPECT_EQ(aggregator.TakeSteps().size(), 1);
  EXPECT_FALSE(aggregator.TakeGap().has_value());
}

TEST(StepAggregatorOfRanksTest, ADroppedEvaluationDoesNotDelayLaterOnes) {
  StepAggregator aggregator;
  aggregator.Begin(PlanOf({8, 8}), 0);
  auto report = [](std::initializer_list<int64_t> steps) {
    v1::JobReport report;
    for (const int64_t step : steps) {
      report.add_evaluations()->set_step(step);
      report.mutable_evaluations()->rbegin()->set_samples(4);
    }
    return report;
  };

  aggregator.Take(0, report({10, 20}));
  EXPECT_TRUE(aggregator.TakeEvaluations().empty());
  aggregator.Take(1, report({20}));
  const auto evaluations = aggregator.TakeEvaluations();

  ASSERT_EQ(evaluations.size(), 1);
  EXPECT_EQ(evaluations[0].step, 20);
}

// A generation of two workers that ends when one of them is lost.
class ClosedGenerationTest : public StepAggregatorTest {
 protected:
  ClosedGenerationTest() {
    plan_.mutable_workers(0)->set_samples(6);
    plan_.add_workers()->set_samples(2);
    aggregator_.Begin(plan_, 0);
  }
  void Tell(int rank, int64_t first, int64_t count, double loss_share) {
    v1::JobReport report;
    for (int64_t step = first; step < first + count; ++step) {
      v1::StepRecord& record = *report.add_steps();
      record.set_step(step);
      record.set_loss_share(loss_share);
    }
    aggregator_.Take(rank, report);
  }
  void TellEvaluation(int rank, int64_t step, double loss_sum, int64_t samples) {
    v1::JobReport report;
    v1::EvaluationRecord& record = *report.add_evaluations();
    record.set_step(step);
    record.set_loss_sum(loss_sum);
    record.set_samples(samples);
    aggregator_.Take(rank, report);
  }
};

TEST_F(ClosedGenerationTest, PartlyReportedStepsHaveTheMeanOfTheReports) {
  Tell(0, 0, 5, 1.5);
  Tell(1, 0, 2, 0.25);
  EXPECT_EQ(aggregator_.TakeSteps().size(), 2);

  const std::vector<StepSummary> closed = aggregator_.CloseSteps(4);

  ASSERT_EQ(closed.size(), 2);
  EXPECT_EQ(closed[0].step, 2);
  EXPECT_EQ(closed[1].loss, 2) << "1.5 of three quarters of the batch";
  EXPECT_EQ(aggregator_.steps_before(), 4) << "step 4 is computed again";
  EXPECT_FALSE(aggregator_.TakeGap().has_value());
}

TEST_F(ClosedGenerationTest, UnreportedStepsAreSkippedAndNamed) {
  Tell(0, 0, 1, 1);
  Tell(1, 0, 1, 1);
  EXPECT_EQ(aggregator_.TakeSteps().size(), 1);
  EXPECT_TRUE(aggregator_.CloseSteps(3).empty());
  const std::optional<StepGap> gap = aggregator_.TakeGap();
  ASSERT_TRUE(gap.has_value());
  EXPECT_EQ(gap->first, 1);
  EXPECT_EQ(gap->last, 2);
}

TEST_F(ClosedGenerationTest, TheNextGenerationRepeatsAnEvaluationOfItsFirstVersion) {
  TellEvaluation(0, 10, 30, 15);
  TellEvaluation(0, 20, 8, 15);
  const std::vector<EvaluationSummary> closed = aggregator_.CloseEvaluations(20);
  ASSERT_EQ(closed.size(), 1);
  EXPECT_EQ(closed[0].step, 10);
  EXPECT_EQ(closed[0].loss, 2) << "over the samples that are known";
  EXPECT_EQ(aggregator_.evaluations_before(), 11);
  aggregator_.Begin(plan_, 20);
  TellEvaluation(0, 20, 9, 15);
  TellEvaluation(1, 20, 1, 5);
  EXPECT_EQ(aggregator_.TakeEvaluations().at(0).loss, 0.5);
}

}  // namespace
}  // namespace muster::step_aggregator_test
