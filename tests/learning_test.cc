// Checks that the examples learn.
#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/training_cluster.h"

namespace muster::learning_test {
namespace {

std::string Example(const std::string& name) {
  std::ifstream file("examples/" + name);
  EXPECT_TRUE(file.good()) << name;
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

// Returns an example with these replacements. In nightly runs (TEST_LENGTH) it is unchanged.
std::string Shortened(const std::string& yaml,
                      const std::vector<std::pair<std::string, std::string>>& replacements) {
  for (const auto& [from, to] : replacements) {
    EXPECT_TRUE(absl::StrContains(yaml, from)) << from;
  }
  return Lengthened(1) > 1 ? yaml : absl::StrReplaceAll(yaml, replacements);
}

TEST(LearningTest, LinearRegressionRecoversSlopeAndInterceptWithinOnePercent) {
  TrainingCluster cluster({.ps = 2, .workers = 2, .ps_threads = 1});
  const std::string yaml = Example("linear.yaml");
  const std::string job = cluster.Submit(yaml);
  const v1::Job done = cluster.AwaitState(job, v1::SUCCEEDED);
  const v1::LinearData& truth = done.spec().data().linear();
  ASSERT_NE(truth.slope(), 0);
  ASSERT_NE(truth.intercept(), 0);

  double slope = NAN, intercept = NAN;
  for (const auto& [name, values] : cluster.Parameters(job, done.progress().step())) {
    ASSERT_EQ(values.size(), 1);
    (name.find("bias") == std::string::npos ? slope : intercept) = values[0];
  }

  EXPECT_NEAR(slope, truth.slope(), 0.01 * std::abs(truth.slope()));
  EXPECT_NEAR(intercept, truth.intercept(), 0.01 * std::abs(truth.intercept()));
}

TEST(LearningTest, LeNetReaches97PercentOnMnistWithin10Epochs) {
  TrainingCluster cluster({.ps = 2, .workers = 2, .ps_threads = 1});
  const std::string job = cluster.Submit(
      Shortened(Example("mnist_lenet.yaml"), {{"\n  epochs: 8 ", "\n  epochs: 5 "}}));

  const v1::Job done = cluster.AwaitState(job, v1::SUCCEEDED, absl::Minutes(5));

  EXPECT_LE(done.spec().training().epochs(), 10);
  EXPECT_GT(done.spec().training().epochs(), 0);
  EXPECT_EQ(done.workers_size(), 2);
  EXPECT_EQ(done.ps_size(), 2);
  EXPECT_GE(done.progress().evaluation_accuracy(), 0.97);
}

TEST(LearningTest, CharacterGptLearnsOnTwoCpuDevicesPerWorker) {
  TrainingCluster cluster({.ps = 1, .workers = 1, .ps_threads = 1, .devices = "cpu:2"});
  const std::string job = cluster.Submit(R"(
name: tiny-gpt
model: {zoo: {name: gpt, args: {layers: 1, heads: 2, channels: 32, context: 32, tied: true}}}
data: {text: {path: examples/data/licences, holdout: 0.1}, batch_size: 8}
training: {steps: 300, optimizer: {adamw: {learning_rate: 3e-3}}, evaluate_every_steps: 100}
)");
  const v1::Job done = cluster.AwaitState(job, v1::SUCCEEDED);

  EXPECT_NEAR(done.progress().first_loss(), std::log(256), 0.5);
  EXPECT_LT(done.progress().evaluation_loss(), 3.0);
}

// Runs a quarter of the steps with a schedule of that length, and evaluates once.
TEST(LearningTest, TheCharacterGptExampleLearnsToSpell) {
  TrainingCluster cluster({.ps = 2, .workers = 2, .ps_threads = 1});
  const std::string job =
      cluster.Submit(Shortened(Example("char_gpt.yaml"), {{"\n  steps: 2000\n", "\n  steps: 500\n"},
                                                          {"_steps: 400 ", "_steps: 500 "}}));

  const v1::Job done = cluster.AwaitState(job, v1::SUCCEEDED, absl::Minutes(10));

  EXPECT_EQ(done.progress().step(), done.spec().training().steps());
  EXPECT_EQ(done.workers_size(), 2);
  EXPECT_EQ(done.ps_size(), 2);
  EXPECT_LT(done.progress().evaluation_loss(), 1.85);
}

}  // namespace
}  // namespace muster::learning_test
