#include "lib/telemetry/trace.h"

#include <atomic>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "lib/telemetry/trace_file.h"

namespace muster::trace_test {
namespace {

std::string PathOf(const std::string& name) { return testing::TempDir() + "/" + name; }

nlohmann::json Read(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(std::string((std::istreambuf_iterator<char>(file)), {}), nullptr,
                               /*allow_exceptions=*/false);
}

// Returns the events, except those that name processes and tracks.
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
    Trace recorder;
    Trace* const trace = &recorder;
    const auto file = TraceFile::Create(path, trace).value();
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
  Trace trace;
  const auto file = TraceFile::Create(path, &trace, /*events_max=*/10).value();
  for (int i = 0; i < 25; ++i) trace.Span(0, "step", i, i + 1, {{{"step", i}}});
  EXPECT_EQ(trace.dropped(), 15);
  ASSERT_TRUE(file->Write().ok());

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
    Trace trace;
    const auto file = TraceFile::Create(path, &trace).value();
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&trace, t] {
        for (int i = 0; i < kEvents; ++i) trace.Span(t, "step", i, i + 1, {{{"step", i}}});
      });
    }
    EXPECT_TRUE(file->Write().ok());
    EXPECT_TRUE(Read(path).is_object());
  }
  std::map<int, int> of_track;
  for (const nlohmann::json& event : EventsOf(Read(path))) ++of_track[event["tid"]];
  for (int t = 0; t < kThreads; ++t) EXPECT_EQ(of_track[t], kEvents);
}

TEST(TraceTest, RecordsOnlyWhileItIsOn) {
  Trace trace;
  trace.Span(0, "before", 0, 1);
  ASSERT_TRUE(trace.Start({.events_max = 10}));
  EXPECT_FALSE(trace.Start({.events_max = 10})) << "another recording is on";
  trace.Span(0, "while", 0, 1);
  const Trace::Recording recording = trace.Stop();
  trace.Span(0, "after", 0, 1);

  ASSERT_EQ(recording.events.size(), 1);
  EXPECT_STREQ(recording.events[0].name, "while");
  EXPECT_TRUE(trace.Stop().events.empty());
  ASSERT_TRUE(trace.Start({.events_max = 10}));
  EXPECT_TRUE(trace.Stop().events.empty()) << "events of the previous recording";
}

TEST(TraceTest, ReportsOnceAfterTheStepsAndContinues) {
  Trace trace;
  int told = 0;
  trace.StepBegins(3);
  ASSERT_TRUE(trace.Start({.events_max = 10, .steps = 2, .over = [&told] { ++told; }}));
  trace.StepEnds(3);  // step 3 began before the recording
  for (int64_t step = 4; step < 8; ++step) {
    trace.StepBegins(step);
    trace.Span(0, "step", step, step + 1, {{{"step", step}}});
    trace.StepEnds(step);
  }
  EXPECT_EQ(told, 1);
  EXPECT_EQ(trace.over().first, 4);
  EXPECT_EQ(trace.over().end, 6);
  EXPECT_TRUE(trace.on());
  EXPECT_EQ(trace.Stop().events.size(), 4);
  EXPECT_FALSE(trace.on());
}

// The thread sanitizer checks that memory is not freed while a thread uses it.
TEST(TraceTest, CanBeStartedAndStoppedWhileThreadsRecord) {
  Trace trace;
  std::atomic<bool> over = false;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&trace, &over, t] {
      while (!over) trace.Span(t, "step", 1, 2);
    });
  }
  size_t events = 0;
  for (int i = 0; i < 200 || events == 0; ++i) {
    ASSERT_TRUE(trace.Start({.events_max = 1000}));
    std::this_thread::yield();
    for (const Trace::Event& event : trace.Stop().events) {
      ASSERT_STREQ(event.name, "step");
      ++events;
    }
  }
  over = true;
}

TEST(TraceTest, AnUnwritableFileIsReportedAtOnce) {
  Trace trace;
  const absl::Status status = TraceFile::Create("/nowhere/at/all.json", &trace).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("/nowhere/at/all.json"), std::string::npos) << status;
}

}  // namespace
}  // namespace muster::trace_test
