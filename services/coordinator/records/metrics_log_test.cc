#include "services/coordinator/records/metrics_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "lib/status/status.h"
#include "services/coordinator/records/step_aggregator.h"

namespace muster::metrics_log_test {
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

TEST(MetricsLogTest, LossesMayBeMissingAndMetricsReadBack) {
  const std::string path = FreshFile();
  auto log = MetricsLog::Open(path);
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_TRUE((*log)
                  ->Append({{.step = 0},
                            {.step = 1, .loss = 2},
                            {.step = 2, .metrics = {{"a\"{}", 0.5}, {"evaluation_loss", NAN}}}},
                           {{.step = 3, .samples = 64, .metrics = {{"top1", 0.25}}}, {.step = 4}})
                  .ok());
  EXPECT_EQ(Contents(path),
            "{\"step\":0,\"gradient_norm\":0,\"learning_rate\":0,\"samples_per_second\":0}\n"
            "{\"step\":1,\"loss\":2,\"gradient_norm\":0,\"learning_rate\":0,"
            "\"samples_per_second\":0}\n"
            "{\"step\":2,\"gradient_norm\":0,\"learning_rate\":0,\"samples_per_second\":0,"
            "\"metrics\":{\"a\\\"{}\":0.5,\"evaluation_loss\":null}}\n"
            "{\"step\":3,\"evaluation_samples\":64,\"evaluation_metrics\":{\"top1\":0.25}}\n"
            "{\"step\":4,\"evaluation_samples\":0,\"evaluation_metrics\":{}}\n");

  const auto again = MetricsLog::Open(path);
  ASSERT_TRUE(again.ok()) << again.status();
  const MetricsHistory& history = (*again)->history();
  ASSERT_EQ(history.edges.size(), 2);
  EXPECT_EQ(history.edges[0].step, 0);
  EXPECT_EQ(history.edges[0].loss, 2.0) << "of a step near it";
  EXPECT_EQ(history.edges[1].step, 2);
  EXPECT_EQ(history.edges[1].loss, 2.0) << "of a step near it";
  EXPECT_EQ(history.edges[1].metrics.at("a\"{}"), 0.5);
  ASSERT_EQ(history.evaluation_edges.size(), 2);
  EXPECT_EQ(history.evaluation_edges[0].metrics.at("top1"), 0.25);
  EXPECT_EQ(history.evaluation_edges[0].samples, 64);
  EXPECT_EQ(history.evaluation_edges[1].loss, std::nullopt);
}

TEST(MetricsLogTest, DoublesReadBackExactlyAndNonFiniteOnesAreNull) {
  const std::string path = FreshFile();
  auto log = MetricsLog::Open(path);
  ASSERT_TRUE(log.ok()) << log.status();

  ASSERT_TRUE((*log)->Append({StepSummary{0, 0.1, NAN, 3e-3, 100}}, {}).ok());
  const absl::Time time = absl::FromUnixMillis(1'764'130'836'125);
  ASSERT_TRUE((*log)->Append({}, {EvaluationSummary{1, 1.5, 0.25, time}}).ok());
  ASSERT_TRUE(
      (*log)
          ->Append({StepSummary{.step = 1, .loss = 2, .loss_scale = 65536},
                    StepSummary{
                        .step = 2, .loss = 2, .loss_scale = 32768, .skipped = true, .time = time}},
                   {})
          .ok());

  EXPECT_EQ(Contents(path),
            "{\"step\":0,\"loss\":0.10000000000000001,\"gradient_norm\":null,"
            "\"learning_rate\":0.0030000000000000001,\"samples_per_second\":100}\n"
            "{\"step\":1,\"evaluation_loss\":1.5,\"evaluation_accuracy\":0.25,"
            "\"time\":1764130836.125}\n"
            "{\"step\":1,\"loss\":2,\"gradient_norm\":0,\"learning_rate\":0,"
            "\"samples_per_second\":0,\"loss_scale\":65536}\n"
            "{\"step\":2,\"loss\":2,\"gradient_norm\":0,\"learning_rate\":0,"
            "\"samples_per_second\":0,\"loss_scale\":32768,\"skipped\":true,"
            "\"time\":1764130836.125}\n");
}

TEST(MetricsLogTest, ReopeningCutsOffAnUnfinishedLineAndContinues) {
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

// The log is larger than the blocks that are read, and its evaluations are far from both ends.
TEST(MetricsLogTest, ALongLogKeepsItsEdges) {
  const std::string path = FreshFile();
  {
    auto log = MetricsLog::Open(path);
    ASSERT_TRUE(log.ok());
    for (int block = 0; block < 40; ++block) {
      std::vector<StepSummary> steps;
      for (int i = 0; i < 100; ++i) {
        steps.push_back({.step = block * 100 + i, .loss = 1.0 / (block * 100 + i + 3)});
      }
      ASSERT_TRUE((*log)->Append(steps, {}).ok());
      if (block == 10 || block == 20 || block == 25) {
        ASSERT_TRUE((*log)->Append({}, {{.step = block * 100, .loss = block + 0.5}}).ok());
      }
    }
  }
  const std::string whole = Contents(path);
  ASSERT_GT(whole.size(), 300'000);

  auto log = MetricsLog::Open(path);

  ASSERT_TRUE(log.ok());
  EXPECT_EQ(Contents(path), whole);
  const MetricsHistory& history = (*log)->history();
  ASSERT_EQ(history.edges.size(), 2);
  EXPECT_EQ(history.edges[0].step, 0);
  EXPECT_EQ(history.edges[1].step, 3999);
  EXPECT_EQ(history.edges[1].loss, 1.0 / 4002);
  ASSERT_EQ(history.evaluation_edges.size(), 2);
  EXPECT_EQ(history.evaluation_edges[0].step, 1000);
  EXPECT_EQ(history.evaluation_edges[1].loss, 25.5);
}

TEST(MetricsLogTest, DoesNotSearchTheLogIfEvaluationsAreAtTheEnd) {
  const std::string path = FreshFile();
  {
    auto log = MetricsLog::Open(path);
    ASSERT_TRUE((*log)->Append({}, {{.step = 0, .loss = 0.5}}).ok());
    std::vector<StepSummary> steps;
    for (int i = 0; i < 2000; ++i) steps.push_back({.step = i, .loss = 1.0 / (i + 3)});
    ASSERT_TRUE((*log)->Append(steps, {}).ok());
  }
  {
    auto log = MetricsLog::Open(path, MetricsLog::Evaluations::kAtTheEnd);
    ASSERT_TRUE(log.ok());
    EXPECT_TRUE((*log)->history().evaluation_edges.empty());
    ASSERT_EQ((*log)->history().edges.size(), 2);
    EXPECT_EQ((*log)->history().edges[1].step, 1999);
    ASSERT_TRUE((*log)->Append({}, {{.step = 2000, .loss = 0.25}}).ok());
  }
  auto log = MetricsLog::Open(path, MetricsLog::Evaluations::kAtTheEnd);
  EXPECT_EQ((*log)->history().evaluation_edges.back().step, 2000);
}

// A power cut can leave a file at its full length with zeros at its end.
TEST(MetricsLogTest, ReopeningCutsOffAnInvalidEnd) {
  for (const std::string& end : {std::string(100, '\0'), std::string("\0\0\n", 3),
                                 std::string("garbage\n{\"step\":"), std::string("\n\n")}) {
    const std::string path = FreshFile();
    {
      auto log = MetricsLog::Open(path);
      ASSERT_TRUE((*log)->Append({{.step = 0, .loss = 1}, {.step = 1, .loss = 2}}, {}).ok());
    }
    const std::string whole = Contents(path);
    std::ofstream(path, std::ios::app) << end;

    auto log = MetricsLog::Open(path);

    ASSERT_TRUE(log.ok());
    EXPECT_EQ(Contents(path), whole);
    EXPECT_EQ((*log)->history().edges.back().step, 1);
  }
}

// Simulates an Append() during a power cut: only its last pages reached the device.
TEST(MetricsLogTest, ReopeningCutsOffLinesAfterAHole) {
  for (const int64_t hole_begin : {0, 100'000}) {
    const std::string path = FreshFile();
    std::vector<StepSummary> steps(2000);
    for (int i = 0; i < 2000; ++i) steps[i] = {.step = i + 1, .loss = 1};
    {
      auto log = MetricsLog::Open(path);
      ASSERT_TRUE((*log)->Append({{.step = 0, .loss = 1}}, {}).ok());
      ASSERT_TRUE((*log)->Append(steps, {}).ok());
    }
    const std::string whole = Contents(path);
    const int64_t begin = hole_begin + static_cast<int64_t>(whole.find('\n')) + 1;
    ASSERT_GT(std::ssize(whole), begin + 8192);
    std::string torn = whole;
    std::fill_n(torn.begin() + begin, 4096, '\0');
    std::ofstream(path, std::ios::trunc) << torn;

    auto log = MetricsLog::Open(path);

    ASSERT_TRUE(log.ok());
    const std::string left = whole.substr(0, whole.rfind('\n', begin - 1) + 1);
    EXPECT_EQ(Contents(path), left);
    const auto last = static_cast<int64_t>(std::ranges::count(left, '\n')) - 1;
    EXPECT_EQ((*log)->history().edges.back().step, last);
  }
}

TEST(MetricsLogTest, ReopeningEmptiesAFileOfGarbage) {
  const std::string path = FreshFile();
  std::ofstream(path) << "not a line of ours\n";
  auto log = MetricsLog::Open(path);
  ASSERT_TRUE(log.ok());
  EXPECT_TRUE((*log)->history().edges.empty());
  EXPECT_EQ(Contents(path), "");
}

// RLIMIT_FSIZE simulates a full disk on every machine.
TEST(MetricsLogTest, AFailedWriteLeavesTheLogUnchanged) {
  const std::string path = FreshFile();
  auto log = MetricsLog::Open(path);
  ASSERT_TRUE((*log)->Append({{.step = 0, .loss = 1}}, {}).ok());
  const std::string before = Contents(path);
  signal(SIGXFSZ, SIG_IGN);
  rlimit unlimited;
  getrlimit(RLIMIT_FSIZE, &unlimited);
  rlimit full = unlimited;
  full.rlim_cur = before.size() + 20;
  setrlimit(RLIMIT_FSIZE, &full);

  const absl::Status refused = (*log)->Append({{.step = 1, .loss = 2}}, {});

  setrlimit(RLIMIT_FSIZE, &unlimited);
  EXPECT_EQ(ReasonOf(refused), "METRICS_LOG_FAILED");
  EXPECT_EQ(Contents(path), before);
  EXPECT_TRUE((*log)->Append({{.step = 1, .loss = 2}}, {}).ok());
  EXPECT_TRUE(absl::StartsWith(Contents(path), before + "{\"step\":1,"));
}

}  // namespace
}  // namespace muster::metrics_log_test
