#include "services/coordinator/metrics_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "proto/muster/v1/coordinator.pb.h"
#include "services/coordinator/progress_ledger.h"

namespace muster {
namespace {

std::string FreshFile() {
  std::string folder = ::testing::TempDir() + "/metrics-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder + "/metrics.jsonl";
}

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(MetricsLogTest, DoublesReadBackToTheBitAndNonFiniteOnesAreNull) {
  const std::string path = FreshFile();
  auto log = MetricsLog::Open(path);
  ASSERT_TRUE(log.ok()) << log.status();

  ASSERT_TRUE((*log)->Append({StepSummary{0, 0.1, NAN, 3e-3, 100}}, {}).ok());
  ASSERT_TRUE((*log)->Append({}, {EvaluationSummary{1, 1.5, 0.25}}).ok());
  ASSERT_TRUE(
      (*log)
          ->Append({StepSummary{.step = 1, .loss = 2, .loss_scale = 65536},
                    StepSummary{.step = 2, .loss = 2, .loss_scale = 32768, .skipped = true}},
                   {})
          .ok());

  EXPECT_EQ(Contents(path),
            "{\"step\":0,\"loss\":0.10000000000000001,\"gradient_norm\":null,"
            "\"learning_rate\":0.0030000000000000001,\"samples_per_second\":100}\n"
            "{\"step\":1,\"evaluation_loss\":1.5,\"evaluation_accuracy\":0.25}\n"
            "{\"step\":1,\"loss\":2,\"gradient_norm\":0,\"learning_rate\":0,"
            "\"samples_per_second\":0,\"loss_scale\":65536}\n"
            "{\"step\":2,\"loss\":2,\"gradient_norm\":0,\"learning_rate\":0,"
            "\"samples_per_second\":0,\"loss_scale\":32768,\"skipped\":true}\n");
}

TEST(MetricsLogTest, ReopeningCutsOffAnUnfinishedLineAndKnowsWhereToGoOn) {
  const std::string path = FreshFile();
  {
    auto log = MetricsLog::Open(path);
    ASSERT_TRUE(log.ok());
    for (int step = 0; step < 3; ++step) {
      ASSERT_TRUE((*log)->Append({StepSummary{.step = step, .loss = 3.0 - step}}, {}).ok());
    }
    ASSERT_TRUE((*log)->Append({}, {EvaluationSummary{.step = 2, .loss = 1}}).ok());
  }
  const std::string whole = Contents(path);
  std::ofstream(path, std::ios::app) << "{\"step\":3,\"lo";

  auto log = MetricsLog::Open(path);

  ASSERT_TRUE(log.ok());
  EXPECT_EQ(Contents(path), whole);
  const MetricsHistory& history = (*log)->history();
  ASSERT_EQ(history.edges.size(), 2);
  EXPECT_EQ(history.edges[0].loss, 3.0);
  EXPECT_EQ(history.edges[1].step, 2);
  ASSERT_EQ(history.evaluation_edges.size(), 1);
  EXPECT_EQ(history.evaluation_edges[0].step, 2);
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

// Of a batch of 16.
v1::JobPlan PlanOf(std::initializer_list<int64_t> samples) {
  v1::JobPlan plan;
  plan.mutable_spec()->mutable_data()->set_batch_size(16);
  for (const int64_t of_worker : samples) plan.add_workers()->set_samples(of_worker);
  return plan;
}

TEST(ProgressLedgerTest, AStepIsKnownOnceEveryRankHasToldItsPartInOrder) {
  ProgressLedger ledger;
  ledger.Begin(PlanOf({8, 8}), /*next_step=*/5);

  ledger.Take(1, StepReport({{5, 0.5}, {6, 0.25}}));
  EXPECT_TRUE(ledger.TakeSteps().empty());
  ledger.Take(0, StepReport({{4, 9.0}, {5, 1.0}}));
  const auto steps = ledger.TakeSteps();

  ASSERT_EQ(steps.size(), 1);
  EXPECT_EQ(steps[0].step, 5);
  EXPECT_EQ(steps[0].loss, 1.5);
  EXPECT_EQ(steps[0].samples_per_second, 32);
  EXPECT_EQ(ledger.steps_before(), 6);
}

TEST(ProgressLedgerTest, WhatIsSentAgainIsNotCountedTwice) {
  ProgressLedger ledger;
  ledger.Begin(PlanOf({16}), 0);
  ledger.Take(0, StepReport({{0, 1.0}}));
  ASSERT_EQ(ledger.TakeSteps().size(), 1);

  ledger.Take(0, StepReport({{0, 1.0}, {1, 2.0}}));
  const auto steps = ledger.TakeSteps();

  ASSERT_EQ(steps.size(), 1);
  EXPECT_EQ(steps[0].step, 1);
}

TEST(ProgressLedgerTest, AStepThatSomeMissedIsTheMeanOverWhatTheOthersComputed) {
  ProgressLedger ledger;
  ledger.Begin(PlanOf({8, 4, 4}), 0);
  v1::JobReport missed;
  missed.add_steps()->set_missed(true);
  v1::JobReport overtaken = StepReport({{0, 0.5}});
  overtaken.mutable_steps(0)->set_gradient_norm(std::nan(""));
  v1::JobReport computed = StepReport({{0, 1.0}});
  computed.mutable_steps(0)->set_gradient_norm(3);

  ledger.Take(1, missed);
  ledger.Take(1, missed);
  ledger.Take(0, computed);
  ledger.Take(2, overtaken);
  const auto steps = ledger.TakeSteps();

  ASSERT_EQ(steps.size(), 1);
  EXPECT_DOUBLE_EQ(steps[0].loss, (1.0 + 0.5) / 0.75);
  EXPECT_EQ(steps[0].gradient_norm, 3) << "who was overtaken does not know it";
}

TEST(ProgressLedgerTest, EvaluationsAddUpOverRanksThatMayHaveNoSamples) {
  ProgressLedger ledger;
  ledger.Begin(PlanOf({8, 8}), 0);
  v1::JobReport some, none;
  v1::EvaluationRecord& record = *some.add_evaluations();
  record.set_step(10);
  record.set_loss_sum(30);
  record.set_correct(5);
  record.set_samples(20);
  record.set_has_accuracy(true);
  none.add_evaluations()->set_step(10);

  ledger.Take(0, some);
  EXPECT_TRUE(ledger.TakeEvaluations().empty());
  ledger.Take(1, none);
  const auto evaluations = ledger.TakeEvaluations();

  ASSERT_EQ(evaluations.size(), 1);
  EXPECT_EQ(evaluations[0].loss, 1.5);
  EXPECT_EQ(evaluations[0].accuracy, 0.25);
  EXPECT_EQ(ledger.evaluations_before(), 11);
}

}  // namespace
}  // namespace muster
