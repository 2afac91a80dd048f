#include "services/coordinator/diagnostics/job_traces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "services/coordinator/diagnostics/clock_offset.h"
#include "services/coordinator/testing/registry_fixture.h"

namespace muster::job_traces_test {
namespace {

using ::testing::HasSubstr;

TEST(ClockOffsetTest, UsesTheShortestRoundTripAndItsUncertainty) {
  ClockOffset clock;
  EXPECT_FALSE(clock.best().has_value());
  // The other clock is 1,000 behind. The travel times are 40 there and 60 back.
  clock.Add({.sent = 2000, .heard = 1040, .told = 1050, .received = 2110});
  EXPECT_EQ(clock.best()->uncertainty, 50);
  EXPECT_LE(std::abs(clock.best()->offset - 1000), 50);
  clock.Add({.sent = 3000, .heard = 2004, .told = 2010, .received = 3012});
  EXPECT_EQ(clock.best()->uncertainty, 3);
  EXPECT_LE(std::abs(clock.best()->offset - 1000), 3);
  clock.Add({.sent = 4000, .heard = 3900, .told = 3800, .received = 4001});  // impossible
  EXPECT_EQ(clock.best()->uncertainty, 3);
}

TEST(ClockOffsetTest, DriftingClocksAreLessCertain) {
  using Estimate = ClockOffset::Estimate;
  EXPECT_FALSE(OffsetOver(std::nullopt, std::nullopt).has_value());
  EXPECT_EQ(OffsetOver(std::nullopt, Estimate{7, 2})->offset, 7);
  const auto over = OffsetOver(Estimate{1000, 5}, Estimate{1100, 20});
  EXPECT_EQ(over->offset, 1000);
  EXPECT_EQ(over->uncertainty, 120);
}

// A running job with one worker and one ps. Their clocks are behind.
class JobTracesTest : public RegistryFixture {
 protected:
  static constexpr int64_t kBehind = 5'000'000;

  JobTracesTest() {
    const uint64_t number = AddJob();
    worker_ = Attach("w-0");
    ps_ = Attach("ps-0");
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number);
    v1::Job record = *entry.published;
    record.set_state(v1::RUNNING);
    record.add_workers("w-0");
    record.add_ps("ps-0");
    job_ = record.name();
    entry.published = std::make_shared<const v1::Job>(record);
    entry.job = Job(record, std::make_shared<const v1::JobPlan>(), /*term=*/1, now_);
  }

  uint64_t Ask(int steps = 0) {
    v1::TraceJobRequest request;
    request.set_name(job_);
    request.set_steps(steps);
    return traces_.Ask(request, [this](auto answer) { answer_ = std::move(answer); });
  }
  // Returns the latest order of each kind since the last call.
  static v1::TraceOrder OrdersOf(Attachment& stream) {
    v1::TraceOrder orders;
    for (const MemberDirective& told : stream.TakeDirectives()) {
      orders.MergeFrom(told.directive.trace_order());
    }
    return orders;
  }
  v1::TracePart PartOf(const v1::TraceOrder& orders) const {
    v1::TracePart part;
    part.set_request(orders.request());
    part.set_probe(orders.probe());
    part.set_heard_nanos(steady_ - kBehind);
    part.set_told_nanos(steady_ - kBehind);
    return part;
  }
  void Say(const std::string& member, const v1::TracePart& part) {
    steady_ += 100;
    v1::MemberReport report;
    *report.add_traces() = part;
    traces_.Take(member, report);
  }
  // Answers clock probes until there are no more.
  v1::TraceOrder Answer(const std::string& member, Attachment& stream) {
    v1::TraceOrder all;
    for (v1::TraceOrder orders = OrdersOf(stream); orders.probe() != 0; orders = OrdersOf(stream)) {
      all.MergeFrom(orders);
      Say(member, PartOf(orders));
    }
    return all;
  }
  v1::TracePart Told(uint64_t request, int64_t step) const {
    v1::TracePart part;
    part.set_request(request);
    part.set_last(true);
    part.mutable_told()->add_names("step");
    v1::TraceEvent& event = *part.mutable_told()->add_events();
    event.set_kind(v1::TRACE_EVENT_KIND_SPAN);
    event.set_time_nanos(steady_ - kBehind);
    event.add_argument_names(0);
    event.add_arguments(step);
    return part;
  }

  std::string job_;
  std::shared_ptr<Attachment> worker_, ps_;
  int64_t steady_ = 1'000'000'000;
  JobTraces traces_{registry_.get(), fleet_.get(), [this] { return steady_; }};
  std::optional<absl::StatusOr<v1::TraceJobResponse>> answer_;
};

TEST_F(JobTracesTest, RecordsStepsAndReturnsThemOnOneClock) {
  Ask(3);
  EXPECT_FALSE(OrdersOf(*worker_).has_record()) << "the ps might miss its first steps";
  Answer("ps-0", *ps_);
  const v1::TraceOrder first = Answer("w-0", *worker_);
  EXPECT_EQ(first.record().steps(), 3);
  EXPECT_GT(first.record().events_max(), 0);
  EXPECT_FALSE(answer_.has_value());

  v1::TracePart over;
  over.set_request(first.request());
  over.set_over(true);
  over.set_first_step(10);
  over.set_end_step(13);
  Say("w-0", over);
  const v1::TraceOrder tell = Answer("ps-0", *ps_);
  EXPECT_EQ(tell.tell().first_step(), 10);
  EXPECT_EQ(tell.tell().end_step(), 13);
  const int64_t at = steady_;
  Say("ps-0", Told(first.request(), 11));
  Answer("w-0", *worker_);
  EXPECT_FALSE(answer_.has_value());
  Say("w-0", Told(first.request(), 12));

  ASSERT_TRUE(answer_.has_value());
  ASSERT_TRUE(answer_->ok()) << answer_->status();
  const v1::TraceJobResponse& trace = **answer_;
  ASSERT_EQ(trace.members_size(), 2);
  EXPECT_EQ(trace.first_step(), 12);
  EXPECT_EQ(trace.end_step(), 13);
  for (const v1::MemberTrace& member : trace.members()) {
    EXPECT_EQ(member.trouble(), "") << member.member();
    EXPECT_LE(std::abs(member.clock_offset_nanos() - kBehind), member.clock_uncertainty_nanos());
    EXPECT_EQ(member.clock_uncertainty_nanos(), 50) << "half of the way";
  }
  EXPECT_EQ(trace.members(0).member(), "w-0");
  EXPECT_LE(std::abs(trace.members(1).events(0).time_nanos() - (at - 1'000'000'000)), 50);
}

TEST_F(JobTracesTest, NamesMembersThatFailAndDeliversTheRest) {
  Ask();
  ASSERT_TRUE(fleet_->Renew(*worker_, {}, now_).ok());
  now_ += limits::kTraceTellMax;
  traces_.Expire();
  const v1::TraceOrder first = Answer("w-0", *worker_);
  EXPECT_EQ(first.record().steps(), 5);
  EXPECT_FALSE(answer_.has_value()) << "the worker still makes its steps";
  now_ += limits::kTraceTimeoutDefault;
  traces_.Expire();  // its time is over
  Answer("w-0", *worker_);
  Say("w-0", Told(first.request(), 4));

  ASSERT_TRUE(answer_.has_value() && answer_->ok());
  EXPECT_THAT((*answer_)->members(0).trouble(), HasSubstr("has not made 5 steps in 1m"));
  EXPECT_EQ((*answer_)->members(0).events_size(), 1);
  EXPECT_THAT((*answer_)->members(1).trouble(), HasSubstr("has not begun to record for 10s"));
}

TEST_F(JobTracesTest, AReplacedProcessIsLost) {
  Ask();
  Answer("ps-0", *ps_);
  Answer("w-0", *worker_);
  fleet_->Detach(*worker_, Fleet::Departure::kOrderly);
  traces_.Expire();
  const v1::TraceOrder tell = Answer("ps-0", *ps_);
  EXPECT_TRUE(tell.has_tell()) << "there is no worker left to wait for";
  Say("ps-0", Told(tell.request(), 1));

  ASSERT_TRUE(answer_.has_value() && answer_->ok());
  EXPECT_THAT((*answer_)->members(0).trouble(), HasSubstr("was lost"));
  EXPECT_EQ((*answer_)->members(1).events_size(), 1);
}

TEST_F(JobTracesTest, AllowsOneTracePerJobAndStopsItWhenItsCallerIsGone) {
  const uint64_t number = Ask();
  EXPECT_EQ(Ask(), 0);
  ASSERT_TRUE(answer_.has_value());
  EXPECT_EQ(ReasonOf(answer_->status()), "TRACE_GOES_ON");
  answer_.reset();

  OrdersOf(*worker_);
  traces_.Drop(number);
  const v1::TraceOrder orders = OrdersOf(*worker_);
  EXPECT_TRUE(orders.has_tell());
  EXPECT_EQ(orders.tell().end_step(), 0) << "nothing is to be told";
  EXPECT_FALSE(answer_.has_value());
  EXPECT_NE(Ask(), 0);
}

TEST_F(JobTracesTest, RejectsIndexesOutOfRange) {
  Ask();
  Answer("ps-0", *ps_);
  const v1::TraceOrder first = Answer("w-0", *worker_);
  v1::TracePart over = PartOf(first);
  over.set_over(true);
  over.set_end_step(1);
  Say("w-0", over);
  v1::TracePart wrong = Told(first.request(), 0);
  wrong.mutable_told()->mutable_events(0)->set_name(77);
  Answer("w-0", *worker_);
  Say("w-0", wrong);
  Answer("ps-0", *ps_);
  Say("ps-0", Told(first.request(), 0));

  ASSERT_TRUE(answer_.has_value() && answer_->ok());
  EXPECT_EQ((*answer_)->members(0).trouble(), "its recording is incomplete");
  EXPECT_EQ((*answer_)->members(0).events_size(), 0);
  EXPECT_EQ((*answer_)->members(1).events_size(), 1);
}

TEST_F(JobTracesTest, RefusesAJobThatDoesNotRunAndInvalidNumbers) {
  EXPECT_EQ(Ask(limits::kTraceStepsMax + 1), 0);
  EXPECT_EQ(ReasonOf(answer_->status()), "INVALID_REQUEST");
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = **transaction.Find(job_);
    v1::Job record = *entry.published;
    record.set_state(v1::QUEUED);
    entry.published = std::make_shared<const v1::Job>(record);
  }
  EXPECT_EQ(Ask(), 0);
  EXPECT_EQ(ReasonOf(answer_->status()), "JOB_NOT_RUNNING");
  job_ = "jobs/none-9";
  EXPECT_EQ(Ask(), 0);
  EXPECT_EQ(ReasonOf(answer_->status()), "JOB_NOT_FOUND");
}

}  // namespace
}  // namespace muster::job_traces_test
