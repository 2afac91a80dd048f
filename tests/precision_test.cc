// Low precision, clipping and micro-batches in whole jobs.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/substitute.h"
#include "gtest/gtest.h"
#include "tests/training_cluster.h"

namespace muster::precision_test {
namespace {

struct Job {
  std::string training;  // more fields of "training"
  int workers = 2;
  int ps = 2;
  int steps = 150;
  int64_t chunk_bytes = 4096;
  std::string checkpoint = "{}";
};

std::string Gpt(const Job& job) {
  return absl::Substitute(R"(
name: gpt
model: {zoo: {name: gpt, args: {layers: 1, heads: 2, channels: 32, context: 16}}}
data: {text: {path: examples/data/licences, holdout: 0.1}, batch_size: 12, seed: 3}
training: {steps: $0, optimizer: {adam: {learning_rate: 3e-3}}, seed: 5 $1}
resources: {workers: {min: $2, max: $2}, ps: $3}
chunk_bytes: $4
checkpoint: $5
)",
                          job.steps, job.training.empty() ? "" : ", " + job.training, job.workers,
                          job.ps, job.chunk_bytes, job.checkpoint);
}

std::string LeNet(const std::string& idx_folder, const std::string& training) {
  return absl::Substitute(R"(
name: lenet
model: {zoo: {name: lenet}}
data: {idx: {images: $0/images, labels: $0/labels, holdout: 0.2}, batch_size: 20, seed: 3}
training: {steps: 120, optimizer: {adam: {learning_rate: 3e-3}}, seed: 5 $1}
resources: {workers: {min: 2, max: 2}, ps: 2}
)",
                          idx_folder, training.empty() ? "" : ", " + training);
}

class PrecisionTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    cluster_ = new TrainingCluster({.ps = 3, .workers = 2, .ps_threads = 1});
  }
  static void TearDownTestSuite() { delete cluster_; }

  static v1::Job Run(const std::string& yaml) { return cluster_->Get(cluster_->Run(yaml)); }
  static std::map<std::string, std::vector<float>> ParametersAfter(const Job& job) {
    return cluster_->Parameters(cluster_->Run(Gpt(job)), job.steps);
  }

  static TrainingCluster* cluster_;
};
TrainingCluster* PrecisionTest::cluster_ = nullptr;

TEST_F(PrecisionTest, LowPrecisionTrainsToNearlyTheLossOfFp32) {
  const v1::Job full = Run(Gpt({}));
  EXPECT_LT(full.progress().evaluation_loss(), full.progress().first_loss() - 1.5);
  for (const char* training : {"precision: tf32", "precision: bf16", "precision: fp16"}) {
    const v1::Job low = Run(Gpt({.training = training}));
    EXPECT_NEAR(low.progress().evaluation_loss(), full.progress().evaluation_loss(), 0.05)
        << training;
  }
}

TEST_F(PrecisionTest, LowPrecisionTrainsAConvolutionalNetwork) {
  const std::string data = MakeIdxData(500, 28, 1);
  const v1::Job full = Run(LeNet(data, ""));
  EXPECT_GT(full.progress().evaluation_accuracy(), 0.9);
  for (const char* training : {"precision: bf16", "precision: fp16"}) {
    const v1::Job low = Run(LeNet(data, training));
    EXPECT_GT(low.progress().evaluation_accuracy(), 0.9) << training;
    EXPECT_NEAR(low.progress().evaluation_loss(), full.progress().evaluation_loss(), 0.1)
        << training;
  }
}

// Settings whose first loss scale is far too high. Steps are skipped until the scale fits; then it
// grows again.
constexpr char kRestless[] =
    "precision: fp16, loss_scale: {initial: 16777216, growth_steps: 7}, clip: {global_norm: 1}";

TEST_F(PrecisionTest, TheLossScaleFindsItsPlaceAndGoesOnFromACheckpoint) {
  const Job whole{
      .training = kRestless, .steps = 60, .checkpoint = "{every_steps: 25, keep_last: 0}"};
  const std::string undisturbed = cluster_->Run(Gpt(whole));
  const std::vector<StepMetrics> expected = cluster_->Metrics(undisturbed);
  ASSERT_EQ(expected.size(), 60);
  EXPECT_EQ(expected[0].loss_scale, 16777216);
  EXPECT_TRUE(expected[0].skipped);
  const auto skipped = std::count_if(expected.begin(), expected.end(),
                                     [](const StepMetrics& step) { return step.skipped; });
  EXPECT_GT(skipped, 1);
  EXPECT_LT(skipped, 40);
  for (size_t s = 1; s < expected.size(); ++s) {
    if (expected[s - 1].skipped) {
      EXPECT_EQ(expected[s].loss_scale, expected[s - 1].loss_scale / 2) << s;
    }
  }

  Job rest = whole;
  rest.ps = 3;
  rest.checkpoint = "{resume_from: " + undisturbed + "@25}";
  const std::string resumed = cluster_->Run(Gpt(rest));

  const std::vector<StepMetrics> metrics = cluster_->Metrics(resumed);
  ASSERT_EQ(metrics.size(), 35);
  for (size_t s = 0; s < metrics.size(); ++s) {
    EXPECT_EQ(metrics[s].step, 25 + s);
    EXPECT_EQ(metrics[s].loss, expected[25 + s].loss) << s;
    EXPECT_EQ(metrics[s].loss_scale, expected[25 + s].loss_scale) << s;
    EXPECT_EQ(metrics[s].skipped, expected[25 + s].skipped) << s;
  }
  EXPECT_EQ(cluster_->Parameters(undisturbed, 60), cluster_->Parameters(resumed, 60));
}

TEST_F(PrecisionTest, AClippedRunHasTheSameBitsOnAnyNumberOfPs) {
  const std::string clip = "clip: {global_norm: 0.5}";
  const auto reference = ParametersAfter({.training = clip, .ps = 1, .steps = 20});
  for (int ps : {2, 3}) {
    EXPECT_EQ(reference, ParametersAfter({.training = clip, .ps = ps, .steps = 20})) << ps << " ps";
  }
  EXPECT_NE(reference, ParametersAfter({.ps = 1, .steps = 20})) << "clipping clips";
}

TEST_F(PrecisionTest, MicroBatchesAndRecomputationGiveTheSameModel) {
  const std::string whole = cluster_->Run(Gpt({.steps = 1}));
  const auto reference = cluster_->Parameters(whole, 1);
  const StepMetrics expected = cluster_->Metrics(whole).at(0);
  for (const char* training : {"micro_batch_size: 1", "micro_batch_size: 4", "recompute: true",
                               "micro_batch_size: 5, recompute: true"}) {
    const std::string job = cluster_->Run(Gpt({.training = training, .steps = 1}));
    const StepMetrics metrics = cluster_->Metrics(job).at(0);
    EXPECT_NEAR(metrics.loss, expected.loss, 1e-5 * expected.loss) << training;
    EXPECT_NEAR(metrics.gradient_norm, expected.gradient_norm, 1e-4 * expected.gradient_norm)
        << training;
    // Adam's first step is the sign of the gradient, which depends on rounding if the gradient is
    // near 0.
    const auto other = cluster_->Parameters(job, 1);
    int64_t apart = 0, all = 0;
    for (const auto& [name, values] : reference) {
      for (size_t i = 0; i < values.size(); ++i) {
        apart += std::abs(values[i] - other.at(name)[i]) > 1e-5;
        ++all;
      }
    }
    EXPECT_LT(apart, all / 1000) << training;
  }
}

}  // namespace
}  // namespace muster::precision_test
