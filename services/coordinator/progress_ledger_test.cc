#include "services/coordinator/progress_ledger.h"

#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "services/coordinator/proto_time.h"

namespace muster {
namespace {

constexpr int kBatch = 8;

class ProgressLedgerTest : public testing::Test {
 protected:
  ProgressLedgerTest() {
    plan_.mutable_spec()->mutable_data()->set_batch_size(kBatch);
    plan_.add_workers()->set_samples(kBatch);
    ledger_.Begin(plan_, 0);
  }

  // The next step, `seconds` after the one before; what is then shown.
  double Step(double seconds) {
    now_ += absl::Seconds(seconds);
    v1::JobReport report;
    v1::StepRecord& record = *report.add_steps();
    record.set_step(ledger_.steps_before());
    record.set_step_seconds(seconds);
    *record.mutable_time() = ToProto(now_);
    ledger_.Take(0, report);
    const std::vector<StepSummary> steps = ledger_.TakeSteps();
    EXPECT_EQ(steps.size(), 1);
    return steps.empty() ? 0 : steps[0].samples_per_second;
  }

  v1::JobPlan plan_;
  ProgressLedger ledger_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
};

TEST_F(ProgressLedgerTest, ASlowFirstStepIsNotRemembered) {
  EXPECT_DOUBLE_EQ(Step(4), kBatch / 4.0);  // all that is known
  EXPECT_NEAR(Step(0.01), kBatch / 0.01, 1);
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(Step(0.01), kBatch / 0.01, 1);
}

TEST_F(ProgressLedgerTest, TheFirstSecondsCountEqually) {
  Step(1);
  Step(0.1);
  EXPECT_NEAR(Step(0.3), kBatch / 0.25, 1e-3);  // by time: 0.1 of 0.4 s at 0.1, 0.3 at 0.3
}

TEST_F(ProgressLedgerTest, WhatLiesMoreThanAFewSecondsBackIsForgotten) {
  Step(1);
  for (int i = 0; i < 10; ++i) Step(1);
  double rate = 0;
  for (int i = 0; i < 300; ++i) rate = Step(0.1);
  EXPECT_NEAR(rate, kBatch / 0.1, 0.5);
}

}  // namespace
}  // namespace muster
