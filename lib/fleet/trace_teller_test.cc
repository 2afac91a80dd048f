#include "lib/fleet/trace_teller.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/telemetry/trace.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster::trace_teller_test {
namespace {

class TraceTellerTest : public ::testing::Test {
 protected:
  v1::Directive Order(uint64_t request) const {
    v1::Directive directive;
    directive.set_job("line-1");
    directive.mutable_trace_order()->set_request(request);
    return directive;
  }
  void Record(uint64_t request, int64_t steps, int64_t events_max = 10000) {
    v1::Directive directive = Order(request);
    directive.mutable_trace_order()->mutable_record()->set_steps(steps);
    directive.mutable_trace_order()->mutable_record()->set_events_max(events_max);
    teller_.Handle(directive);
  }
  void Tell(uint64_t request, int64_t first, int64_t end) {
    v1::Directive directive = Order(request);
    directive.mutable_trace_order()->mutable_tell()->set_first_step(first);
    directive.mutable_trace_order()->mutable_tell()->set_end_step(end);
    teller_.Handle(directive);
  }
  // All that the teller reports: the step of each event in order, all names, and the last part.
  struct Told {
    std::vector<int64_t> steps;
    std::vector<std::string> names;
    v1::TracePart last;
    int reports = 0;
  };
  Told ReadAll() {
    Told told;
    for (bool more = true; more; ++told.reports) {
      v1::MemberReport report;
      more = teller_.AddTo(report);
      for (const v1::TracePart& part : report.traces()) {
        for (const v1::TraceEvent& event : part.told().events()) {
          told.steps.push_back(event.arguments(0));
        }
        told.names.insert(told.names.end(), part.told().names().begin(), part.told().names().end());
        told.last = part;
      }
    }
    return told;
  }
  void MakeStep(int64_t step) {
    trace_->StepBegins(step);
    trace_->Span(1, "step", Trace::Now(), Trace::Now(), {{{"step", step}}});
    trace_->StepEnds(step);
  }

  std::shared_ptr<Trace> trace_ = std::make_shared<Trace>();
  int reports_soon_ = 0;
  TraceTeller teller_{[this](const std::string& job) { return job == "line-1" ? trace_ : nullptr; },
                      [this] { ++reports_soon_; }};
};

TEST_F(TraceTellerTest, StepsAreRecordedAnnouncedAndTold) {
  trace_->NameTrack(1, "steps");
  Record(7, 2);
  for (int64_t step = 3; step < 9; ++step) MakeStep(step);
  v1::MemberReport report;
  reports_soon_ = 0;
  EXPECT_FALSE(teller_.AddTo(report));
  ASSERT_EQ(report.traces_size(), 1);
  EXPECT_TRUE(report.traces(0).over());
  EXPECT_EQ(report.traces(0).request(), 7);
  EXPECT_EQ(report.traces(0).first_step(), 3);
  EXPECT_EQ(report.traces(0).end_step(), 5);
  v1::MemberReport again;
  teller_.AddTo(again);
  EXPECT_EQ(again.traces_size(), 0) << "an end is reported once";

  Tell(7, 4, 5);
  EXPECT_EQ(reports_soon_, 1);
  const Told told = ReadAll();
  EXPECT_EQ(told.steps, std::vector<int64_t>{4}) << "only the requested steps";
  EXPECT_EQ(told.names, std::vector<std::string>{"step"});
  ASSERT_TRUE(told.last.last());
  EXPECT_EQ(told.last.told().tracks(0).name(), "steps");
  EXPECT_FALSE(trace_->on());
}

TEST_F(TraceTellerTest, ManyEventsComeInSeveralReportsWithWhatWasDropped) {
  Record(1, 5, 30000);
  for (int i = 0; i < 30010; ++i) trace_->Span(1, "wait", 0, 1, {{{"step", 1}}});
  Tell(1, 0, 9);
  const Told told = ReadAll();
  EXPECT_EQ(told.steps.size(), 30000);
  EXPECT_EQ(told.last.told().dropped(), 10);
  EXPECT_GT(told.reports, 1);
  EXPECT_EQ(told.names.size(), 2) << "each once";
}

TEST_F(TraceTellerTest, AProbeIsAnsweredWithTheClock) {
  const int64_t before = Trace::Now();
  v1::Directive directive = Order(2);
  directive.mutable_trace_order()->set_probe(9);
  teller_.Handle(directive);
  v1::MemberReport report;
  teller_.AddTo(report);
  ASSERT_EQ(report.traces_size(), 1);
  EXPECT_EQ(report.traces(0).probe(), 9);
  EXPECT_LE(before, report.traces(0).heard_nanos());
  EXPECT_LE(report.traces(0).heard_nanos(), report.traces(0).told_nanos());
}

TEST_F(TraceTellerTest, AnswersWhyThereIsNoTrace) {
  Tell(5, 0, 1);
  EXPECT_NE(ReadAll().last.told().trouble().find("started after the request"), std::string::npos);

  ASSERT_TRUE(trace_->Start({.events_max = 5}));  // to a file
  Record(6, 1);
  EXPECT_NE(ReadAll().last.told().trouble().find("--trace"), std::string::npos);
  EXPECT_TRUE(trace_->on()) << "the trace to a file continues";
  trace_->Stop();

  trace_ = nullptr;
  Record(8, 1);
  EXPECT_NE(ReadAll().last.told().trouble().find("does no work for the job"), std::string::npos);
  trace_ = std::make_shared<Trace>();
}

// A coordinator that has ended sends no directive to stop, so the member must stop by itself.
TEST_F(TraceTellerTest, ForgetStopsRecordingsAndDropsAnswers) {
  Record(1, 5);
  MakeStep(1);
  Tell(2, 0, 9);  // an answer that is still unsent
  teller_.Forget();
  EXPECT_FALSE(trace_->on());
  v1::MemberReport report;
  EXPECT_FALSE(teller_.AddTo(report));
  EXPECT_EQ(report.traces_size(), 0);
}

TEST_F(TraceTellerTest, ALaterRequestReplacesAnUnfinishedOne) {
  Record(1, 5);
  MakeStep(1);
  Record(2, 5);
  MakeStep(2);
  Tell(2, 0, 9);
  EXPECT_EQ(ReadAll().steps, std::vector<int64_t>{2});
}

}  // namespace
}  // namespace muster::trace_teller_test
