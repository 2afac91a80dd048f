#include "services/coordinator/records/step_gauges.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/telemetry/metrics.h"
#include "services/coordinator/common/proto_time.h"

namespace muster::step_gauges_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class StepGaugesTest : public ::testing::Test {
 protected:
  // Returns the timing of a worker after `steps` steps, each with 0.25 s data, `compute` and 0.5 s
  // wait.
  v1::MemberTiming After(const std::string& worker, int64_t steps, double compute) const {
    v1::MemberTiming told;
    told.set_member(worker);
    v1::StepTiming& timing = *told.mutable_timing();
    const auto count = static_cast<double>(steps);
    timing.set_steps(steps);
    timing.set_data_seconds(count * 0.25);
    timing.set_compute_seconds(count * compute);
    timing.set_wait_seconds(count * 0.5);
    timing.set_step_seconds(count * (0.75 + compute));
    *told.mutable_report_time() = ToProto(now_);
    return told;
  }
  static std::string Series(const std::string& job, const std::string& worker,
                            const std::string& phase, double value) {
    return absl::StrCat("muster_job_worker_step_seconds{job=\"", job, "\",phase=\"", phase,
                        "\",worker=\"", worker, "\"} ", value, "\n");
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  Metrics metrics_;
  StepGauges gauges_{&metrics_};
};

TEST_F(StepGaugesTest, ShowsTheStepOfEachWorkerByPhase) {
  gauges_.Show("a-1", {After("w-0", 4, 1), After("w-1", 4, 2)});
  const std::string shown = metrics_.Render();
  EXPECT_THAT(shown, HasSubstr(Series("a-1", "w-0", "data", 0.25)));
  EXPECT_THAT(shown, HasSubstr(Series("a-1", "w-0", "compute", 1)));
  EXPECT_THAT(shown, HasSubstr(Series("a-1", "w-0", "wait", 0.5)));
  EXPECT_THAT(shown, HasSubstr(Series("a-1", "w-1", "compute", 2)));
}

TEST_F(StepGaugesTest, ShowsTheMeanOfTheLastStepsOnly) {
  gauges_.Show("a-1", {After("w-0", 100, 1)});
  v1::MemberTiming later = After("w-0", 110, 1);
  later.mutable_timing()->set_compute_seconds(100 + 10 * 4);

  now_ += StepGauges::kWindow - absl::Seconds(1);
  *later.mutable_report_time() = ToProto(now_);
  gauges_.Show("a-1", {later});
  EXPECT_THAT(metrics_.Render(), HasSubstr(Series("a-1", "w-0", "compute", 1))) << "too soon";

  now_ += absl::Seconds(1);
  *later.mutable_report_time() = ToProto(now_);
  gauges_.Show("a-1", {later});
  EXPECT_THAT(metrics_.Render(), HasSubstr(Series("a-1", "w-0", "compute", 4)));

  now_ += absl::Hours(1);
  *later.mutable_report_time() = ToProto(now_);
  gauges_.Show("a-1", {later});
  EXPECT_THAT(metrics_.Render(), HasSubstr(Series("a-1", "w-0", "compute", 4)))
      << "it has made no step since";
}

TEST_F(StepGaugesTest, ANewGenerationStartsFromZero) {
  gauges_.Show("a-1", {After("w-0", 100, 1)});
  now_ += absl::Seconds(1);
  gauges_.Show("a-1", {After("w-0", 2, 3)});
  EXPECT_THAT(metrics_.Render(), HasSubstr(Series("a-1", "w-0", "compute", 3)));
}

TEST_F(StepGaugesTest, RemovesTheSeriesOfGoneWorkersAndJobs) {
  gauges_.Show("a-1", {After("w-0", 4, 1), After("w-1", 4, 1)});
  gauges_.Show("b-2", {After("w-2", 4, 1), After("w-3", 0, 1)});
  EXPECT_THAT(metrics_.Render(), Not(HasSubstr("w-3"))) << "it has made no step";

  gauges_.Show("a-1", {After("w-1", 5, 1)});
  EXPECT_THAT(metrics_.Render(), Not(HasSubstr("w-0")));
  EXPECT_THAT(metrics_.Render(), HasSubstr("w-1"));

  gauges_.Forget("a-1");
  EXPECT_THAT(metrics_.Render(), Not(HasSubstr("a-1")));
  EXPECT_THAT(metrics_.Render(), HasSubstr("w-2"));
  gauges_.Forget("a-1");
}

}  // namespace
}  // namespace muster::step_gauges_test
