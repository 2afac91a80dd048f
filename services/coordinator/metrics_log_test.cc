#include "services/coordinator/metrics_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "services/coordinator/progress_ledger.h"

namespace muster {
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

TEST(MetricsLogTest, DoublesReadBackToTheBitAndNonFiniteOnesAreNull) {
  const std::string path = FreshFile();
  auto log = MetricsLog::Open(path);
  ASSERT_TRUE(log.ok()) << log.status();

  ASSERT_TRUE((*log)->Append({StepSummary{0, 0.1, NAN, 3e-3, 100}}, {}).ok());
  ASSERT_TRUE((*log)->Append({}, {EvaluationSummary{1, 1.5, 0.25}}).ok());
  ASSERT_TRUE(
      (*log)
          ->Append({StepSummary{.step = 1, .loss = 2, .loss_scale = 65536},
                    StepSummary{.step = 2, .loss = 2, .loss_scale = 32768, .skipped = true}},
                   {})
          .ok());

  EXPECT_EQ(Contents(path),
            "{\"step\":0,\"loss\":0.10000000000000001,\"gradient_norm\":null,"
            "\"learning_rate\":0.0030000000000000001,\"samples_per_second\":100}\n"
            "{\"step\":1,\"evaluation_loss\":1.5,\"evaluation_accuracy\":0.25}\n"
            "{\"step\":1,\"loss\":2,\"gradient_norm\":0,\"learning_rate\":0,"
            "\"samples_per_second\":0,\"loss_scale\":65536}\n"
            "{\"step\":2,\"loss\":2,\"gradient_norm\":0,\"learning_rate\":0,"
            "\"samples_per_second\":0,\"loss_scale\":32768,\"skipped\":true}\n");
}

TEST(MetricsLogTest, ReopeningCutsOffAnUnfinishedLineAndKnowsWhereToGoOn) {
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

}  // namespace
}  // namespace muster
