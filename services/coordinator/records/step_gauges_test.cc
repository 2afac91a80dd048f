#include "services/coordinator/records/step_gauges.h"

#include <map>
#include <memory>
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

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class StepGaugesTest : public ::testing::Test {
 protected:
  StepGaugesTest() { metrics_.Add(snapshot_); }

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
  using Timings = std::vector<v1::MemberTiming>;
  // Makes a snapshot with the timings of these jobs, and returns the page.
  std::string Show(const std::map<std::string, Timings>& jobs) {
    for (const auto& [job, timings] : jobs) gauges_.Add(job, timings);
    gauges_.EndSnapshot();
    snapshot_->Publish();
    return metrics_.Render();
  }

  Metrics metrics_;
  const std::shared_ptr<GaugeSnapshot> snapshot_ = std::make_shared<GaugeSnapshot>();
  StepGauges gauges_{snapshot_.get()};
};

TEST_F(StepGaugesTest, ShowsTheStepOfEachWorkerByPhase) {
  const std::string shown = Show({{"a-1", {After("w-0", 4, 1), After("w-1", 4, 2)}}});
  EXPECT_THAT(shown, HasSubstr(Series("a-1", "w-0", "data", 0.25)));
  EXPECT_THAT(shown, HasSubstr(Series("a-1", "w-0", "compute", 1)));
  EXPECT_THAT(shown, HasSubstr(Series("a-1", "w-0", "wait", 0.5)));
  EXPECT_THAT(shown, HasSubstr(Series("a-1", "w-1", "compute", 2)));
}

TEST_F(StepGaugesTest, ShowsTheMeanOfTheLastStepsOnly) {
  Show({{"a-1", {After("w-0", 100, 1)}}});
  v1::MemberTiming later = After("w-0", 110, 1);
  later.mutable_timing()->set_compute_seconds(100 + 10 * 4);

  now_ += StepGauges::kWindow - absl::Seconds(1);
  *later.mutable_report_time() = ToProto(now_);
  EXPECT_THAT(Show({{"a-1", {later}}}), HasSubstr(Series("a-1", "w-0", "compute", 1)))
      << "too soon";

  now_ += absl::Seconds(1);
  *later.mutable_report_time() = ToProto(now_);
  EXPECT_THAT(Show({{"a-1", {later}}}), HasSubstr(Series("a-1", "w-0", "compute", 4)));

  now_ += absl::Hours(1);
  *later.mutable_report_time() = ToProto(now_);
  EXPECT_THAT(Show({{"a-1", {later}}}), HasSubstr(Series("a-1", "w-0", "compute", 4)))
      << "it has made no step since";
}

TEST_F(StepGaugesTest, ANewGenerationStartsFromZero) {
  Show({{"a-1", {After("w-0", 100, 1)}}});
  now_ += absl::Seconds(1);
  EXPECT_THAT(Show({{"a-1", {After("w-0", 2, 3)}}}), HasSubstr(Series("a-1", "w-0", "compute", 3)));
}

TEST_F(StepGaugesTest, ShowsNoSeriesOfGoneWorkersAndJobs) {
  const Timings other = {After("w-2", 4, 1), After("w-3", 0, 1)};
  EXPECT_THAT(Show({{"a-1", {After("w-0", 4, 1), After("w-1", 4, 1)}}, {"b-2", other}}),
              Not(HasSubstr("w-3")))
      << "it has made no step";
  EXPECT_THAT(Show({{"a-1", {After("w-1", 5, 1)}}, {"b-2", other}}),
              AllOf(Not(HasSubstr("w-0")), HasSubstr("w-1")));
  EXPECT_THAT(Show({{"b-2", other}}), AllOf(Not(HasSubstr("a-1")), HasSubstr("w-2")));
}

}  // namespace
}  // namespace muster::step_gauges_test
