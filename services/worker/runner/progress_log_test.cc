#include "services/worker/runner/progress_log.h"

#include <thread>

#include "gtest/gtest.h"
#include "lib/limits/limits.h"

namespace muster::progress_log_test {
namespace {

v1::StepRecord StepOf(int64_t step) {
  v1::StepRecord record;
  record.set_step(step);
  return record;
}

v1::EvaluationRecord EvaluationOf(int64_t step) {
  v1::EvaluationRecord record;
  record.set_step(step);
  return record;
}

v1::Acknowledge Before(int64_t steps, int64_t evaluations) {
  v1::Acknowledge acknowledge;
  acknowledge.set_steps_before(steps);
  acknowledge.set_evaluations_before(evaluations);
  return acknowledge;
}

TEST(ProgressLogTest, ReportsRecordsUntilTheyAreAcknowledged) {
  ProgressLog log;
  for (int64_t step = 0; step < 4; ++step) ASSERT_TRUE(log.Append(StepOf(step)).ok());
  ASSERT_TRUE(log.Append(EvaluationOf(2)).ok());
  ASSERT_TRUE(log.Append(EvaluationOf(4)).ok());
  log.Acknowledge(Before(3, 3));
  log.Acknowledge(Before(1, 0));  // late

  for (int repeat = 0; repeat < 2; ++repeat) {
    v1::JobReport report;
    log.AddTo(report);
    ASSERT_EQ(report.steps_size(), 1);
    EXPECT_EQ(report.steps(0).step(), 3);
    ASSERT_EQ(report.evaluations_size(), 1);
    EXPECT_EQ(report.evaluations(0).step(), 4);
  }
}

TEST(ProgressLogTest, ReportIsLimitedAndStartsWithTheOldestRecord) {
  ProgressLog log;
  constexpr int kShare = limits::kStepRecordsReportedMax;
  for (int64_t step = 0; step < kShare + 2; ++step) ASSERT_TRUE(log.Append(StepOf(step)).ok());
  ASSERT_TRUE(log.Append(EvaluationOf(2)).ok());
  v1::JobReport full, rest;

  log.AddTo(full);
  log.Acknowledge(Before(kShare, 0));
  log.AddTo(rest);

  EXPECT_EQ(full.steps_size(), kShare);
  EXPECT_EQ(full.steps(0).step(), 0);
  EXPECT_EQ(full.evaluations_size(), 0);
  EXPECT_EQ(rest.steps_size(), 2);
  EXPECT_EQ(rest.evaluations_size(), 1);
  EXPECT_LT(full.ByteSizeLong(), limits::kRequestBytesMax / 2);
}

TEST(ProgressLogTest, AFullLogMakesTrainingWaitForTheCoordinator) {
  ProgressLog log(/*capacity=*/2);
  ASSERT_TRUE(log.Append(StepOf(0)).ok());
  ASSERT_TRUE(log.Append(StepOf(1)).ok());
  absl::Status third;
  std::jthread trainer([&] { third = log.Append(StepOf(2)); });
  log.Acknowledge(Before(1, 0));
  trainer.join();
  EXPECT_TRUE(third.ok());
}

TEST(ProgressLogTest, CloseEndsTheWait) {
  ProgressLog log(/*capacity=*/1);
  ASSERT_TRUE(log.Append(StepOf(0)).ok());
  absl::Status second;
  std::jthread trainer([&] { second = log.Append(StepOf(1)); });
  log.Close();
  trainer.join();
  EXPECT_TRUE(absl::IsCancelled(second));
}

}  // namespace
}  // namespace muster::progress_log_test
