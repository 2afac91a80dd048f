#include "cli/text/trace_json.h"

#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::cli::trace_json_test {
namespace {

using ::testing::HasSubstr;

v1::TraceEvent& Add(v1::MemberTrace& member, v1::TraceEventKind kind, int64_t nanos) {
  v1::TraceEvent& event = *member.add_events();
  event.set_kind(kind);
  event.set_time_nanos(nanos);
  event.add_argument_names(0);
  event.add_arguments(7);
  return event;
}

v1::TraceJobResponse Trace() {
  v1::TraceJobResponse trace;
  trace.mutable_begin_time()->set_seconds(1'800'000'000);
  trace.set_first_step(7);
  trace.set_end_step(8);
  v1::MemberTrace& worker = *trace.add_members();
  worker.set_member("worker-\"0\"");
  worker.set_role(v1::WORKER);
  worker.set_host("h");
  worker.set_pid(12);
  worker.set_clock_uncertainty_nanos(41'500);
  for (const char* name : {"step", "chunk", "sent"}) worker.add_names(name);
  worker.add_tracks()->set_name("steps");
  Add(worker, v1::TRACE_EVENT_KIND_END, 3000).set_name(1);
  Add(worker, v1::TRACE_EVENT_KIND_SPAN, 1001).set_length_nanos(2500);
  v1::TraceEvent& mark = Add(worker, v1::TRACE_EVENT_KIND_MARK, 2000);
  mark.set_name(1);
  mark.set_what(2);
  v1::MemberTrace& ps = *trace.add_members();
  ps.set_member("ps-0");
  ps.set_trouble("it was lost meanwhile");
  return trace;
}

TEST(TraceJsonTest, EventsAreInOrderOfTimeWithNamesAndUnits) {
  v1::JobEvent inside, before;
  inside.mutable_time()->set_seconds(1'800'000'000);
  inside.mutable_time()->set_nanos(2000);
  inside.set_reason("LOST");
  before.mutable_time()->set_seconds(1'799'999'999);
  const auto json =
      nlohmann::json::parse(TraceJson("line-1", Trace(), {before, inside}), nullptr, false);
  ASSERT_TRUE(json.is_object());
  std::vector<nlohmann::json> events;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] != "M") events.push_back(event);
  }
  ASSERT_EQ(events.size(), 5);
  EXPECT_EQ(events[0]["name"], "LOST");
  EXPECT_EQ(events[0]["pid"], 1);
  EXPECT_EQ(events[0]["ts"], 2.0);
  EXPECT_EQ(events[1]["ph"], "X");
  EXPECT_EQ(events[1]["ts"], 1.001);
  EXPECT_EQ(events[1]["dur"], 2.5);
  EXPECT_EQ(events[1]["args"]["step"], 7);
  EXPECT_EQ(events[2]["ph"], "C");
  EXPECT_EQ(events[2]["args"]["steps"], 8);
  EXPECT_EQ(events[3]["ph"], "n");
  EXPECT_EQ(events[3]["name"], "sent");
  EXPECT_EQ(events[3]["cat"], "chunk");
  EXPECT_EQ(events[4]["ph"], "e");
  EXPECT_EQ(events[4]["id"], "2.0");
  EXPECT_EQ(json["otherData"]["members"][1]["trouble"], "it was lost meanwhile");
  EXPECT_EQ(json["traceEvents"][4]["args"]["name"], "worker-\"0\" (worker, h, pid 12)");
}

TEST(TraceTextTest, SummaryNamesMembersWithIncompleteTraces) {
  v1::TraceJobResponse trace = Trace();
  EXPECT_EQ(TraceText(trace),
            "steps 7 to 7 of 2 members, 3 events, clocks to 42us\nps-0: it was lost meanwhile\n");
  trace.mutable_members(0)->set_dropped(9);
  EXPECT_THAT(TraceText(trace), HasSubstr("no room for its last 9 events"));
}

}  // namespace
}  // namespace muster::cli::trace_json_test
