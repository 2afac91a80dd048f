#include "lib/telemetry/trace.h"

#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace muster {
namespace {

std::string PathOf(const std::string& name) { return testing::TempDir() + "/" + name; }

nlohmann::json Read(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(std::string((std::istreambuf_iterator<char>(file)), {}), nullptr,
                               /*allow_exceptions=*/false);
}

// Without those that name processes and tracks.
std::vector<nlohmann::json> EventsOf(const nlohmann::json& trace) {
  std::vector<nlohmann::json> events;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] != "M") events.push_back(event);
  }
  return events;
}

TEST(TraceTest, WritesSpansAndLivesWithTheirArguments) {
  const std::string path = PathOf("trace_events.json");
  {
    auto trace = Trace::Create(path).value();
    trace->NameTrack(3, "device \"cpu\"");
    const int64_t begin = Trace::Now();
    trace->Span(3, "forward", begin, begin + 2500, {{{"step", 7}}});
    trace->Begin(4, "chunk", 11, {{{"bytes", 4096}, {"step", 7}}});
    trace->Mark(4, "chunk", "sent", 11, {{{"credit", -1}}});
    trace->End(4, "chunk", 11);
  }
  const nlohmann::json written = Read(path);
  ASSERT_TRUE(written.is_object());
  EXPECT_EQ(written["otherData"]["dropped"], 0);
  const auto events = EventsOf(written);
  ASSERT_EQ(events.size(), 4);

  EXPECT_EQ(events[0]["ph"], "X");
  EXPECT_EQ(events[0]["name"], "forward");
  EXPECT_EQ(events[0]["tid"], 3);
  EXPECT_EQ(events[0]["dur"], 2.5) << "microseconds";
  EXPECT_EQ(events[0]["args"]["step"], 7);

  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(events[i]["cat"], "chunk");
    EXPECT_EQ(events[i]["id"], 11);
    EXPECT_GE(events[i]["ts"], events[i - 1]["ts"]);
  }
  EXPECT_EQ(events[1]["ph"], "b");
  EXPECT_EQ(events[1]["args"]["bytes"], 4096);
  EXPECT_EQ(events[2]["ph"], "n");
  EXPECT_EQ(events[2]["name"], "sent");
  EXPECT_EQ(events[2]["args"]["credit"], -1);
  EXPECT_EQ(events[3]["ph"], "e");
  bool named = false;
  for (const nlohmann::json& event : written["traceEvents"]) {
    named |= event["ph"] == "M" && event["args"]["name"] == "device \"cpu\"";
  }
  EXPECT_TRUE(named);
}

TEST(TraceTest, KeepsTheFirstEventsAndCountsTheRest) {
  const std::string path = PathOf("trace_full.json");
  auto trace = Trace::Create(path, /*events_max=*/10).value();
  for (int i = 0; i < 25; ++i) trace->Span(0, "step", i, i + 1, {{{"step", i}}});
  EXPECT_EQ(trace->dropped(), 15);
  ASSERT_TRUE(trace->Write().ok());

  const nlohmann::json written = Read(path);
  const auto events = EventsOf(written);
  ASSERT_EQ(events.size(), 10);
  EXPECT_EQ(events.back()["args"]["step"], 9);
  EXPECT_EQ(written["otherData"]["dropped"], 15);
}

TEST(TraceTest, ThreadsRecordWithoutLosingEventsWhileAnotherWrites) {
  constexpr int kThreads = 4, kEvents = 5000;
  const std::string path = PathOf("trace_threads.json");
  {
    auto trace = Trace::Create(path).value();
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&trace, t] {
        for (int i = 0; i < kEvents; ++i) trace->Span(t, "step", i, i + 1, {{{"step", i}}});
      });
    }
    EXPECT_TRUE(trace->Write().ok());
    EXPECT_TRUE(Read(path).is_object());
  }
  std::map<int, int> of_track;
  for (const nlohmann::json& event : EventsOf(Read(path))) ++of_track[event["tid"]];
  for (int t = 0; t < kThreads; ++t) EXPECT_EQ(of_track[t], kEvents);
}

TEST(TraceTest, AFileThatCannotBeWrittenIsNamedAtOnce) {
  const absl::Status status = Trace::Create("/nowhere/at/all.json").status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("/nowhere/at/all.json"), std::string::npos) << status;
}

}  // namespace
}  // namespace muster
