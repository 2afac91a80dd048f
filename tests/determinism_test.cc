// A parallel run equals a serial one, and a repeated run is the same to the bit.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "gtest/gtest.h"
#include "tests/training_cluster.h"

namespace muster::determinism_test {
namespace {

constexpr char kSgd[] = "{sgd: {learning_rate: 0.1, momentum: 0.9}}";
constexpr char kAdam[] = "{adam: {learning_rate: 1e-3}}";

struct Shape {
  int workers = 1;
  int ps = 1;
  int64_t chunk_bytes = 4 << 20;
  int steps = 1;
};

std::string Gpt(const std::string& optimizer, const Shape& shape) {
  return absl::Substitute(R"(
name: gpt
model: {zoo: {name: gpt, args: {layers: 2, heads: 2, channels: 32, context: 16}}}
data: {text: {path: examples/data/licences, holdout: 0.1}, batch_size: 12, seed: 3}
training: {steps: $0, optimizer: $1, seed: 5}
resources: {workers: {min: $2, max: $2}, ps: $3}
chunk_bytes: $4
)",
                          shape.steps, optimizer, shape.workers, shape.ps, shape.chunk_bytes);
}

std::string Mlp(const std::string& idx_folder, const std::string& optimizer, const Shape& shape) {
  return absl::Substitute(R"(
name: mlp
model: {zoo: {name: mlp, args: {height: 12, width: 12, hidden: "32,16"}}}
data: {idx: {images: $0/images, labels: $0/labels}, batch_size: 12, seed: 3}
training: {steps: $1, optimizer: $2, seed: 5}
resources: {workers: {min: $3, max: $3}, ps: $4}
chunk_bytes: $5
)",
                          idx_folder, shape.steps, optimizer, shape.workers, shape.ps,
                          shape.chunk_bytes);
}

class DeterminismTest : public ::testing::Test {
 protected:
  // All jobs of this file share one set of processes.
  static void SetUpTestSuite() {
    cluster_ = new TrainingCluster({.ps = 3, .workers = 4, .ps_threads = 1});
  }
  static void TearDownTestSuite() { delete cluster_; }

  static std::map<std::string, std::vector<float>> ParametersAfter(const std::string& yaml,
                                                                   int64_t step) {
    return cluster_->Parameters(cluster_->Run(yaml), step);
  }

  static TrainingCluster* cluster_;
};
TrainingCluster* DeterminismTest::cluster_ = nullptr;

TEST_F(DeterminismTest, OneSgdStepIsTheSameOverAnyNumberOfWorkers) {
  const auto serial = ParametersAfter(Gpt(kSgd, {.workers = 1}), 1);
  for (int workers : {2, 4}) {
    const auto parallel = ParametersAfter(Gpt(kSgd, {.workers = workers}), 1);
    EXPECT_LE(LargestDifference(serial, parallel), 1e-6) << workers << " workers";
  }
}

TEST_F(DeterminismTest, OneAdamStepIsTheSameOverAnyNumberOfWorkers) {
  const std::string data = MakeIdxData(200, 12, 1);
  const auto serial = ParametersAfter(Mlp(data, kAdam, {.workers = 1}), 1);
  for (int workers : {2, 4}) {
    const auto parallel = ParametersAfter(Mlp(data, kAdam, {.workers = workers}), 1);
    EXPECT_LE(LargestDifference(serial, parallel), 1e-5) << workers << " workers";
  }
}

TEST_F(DeterminismTest, AStepChangesTheParameters) {
  // A system that does nothing would pass the comparisons above.
  const std::string job = cluster_->Run(Gpt(kSgd, {.workers = 2, .steps = 2}));
  const auto metrics = cluster_->Metrics(job);
  ASSERT_EQ(metrics.size(), 2);
  EXPECT_NE(metrics[0].loss, metrics[1].loss);
  EXPECT_GT(metrics[0].gradient_norm, 0);
}

TEST_F(DeterminismTest, AnyNumberOfPsAndAnyChunkSizeGiveTheSameBits) {
  const auto reference = ParametersAfter(Gpt(kAdam, {.workers = 2, .ps = 1, .steps = 20}), 20);
  for (int ps : {1, 2, 3}) {
    for (int64_t chunk_bytes : {1024, 4160, 1 << 20}) {
      const auto other = ParametersAfter(
          Gpt(kAdam, {.workers = 2, .ps = ps, .chunk_bytes = chunk_bytes, .steps = 20}), 20);
      EXPECT_EQ(reference, other) << ps << " ps, chunks of " << chunk_bytes << " bytes";
    }
  }
}

TEST_F(DeterminismTest, FiveRepeatsWriteTheSameCheckpointToTheBit) {
  std::set<std::map<std::string, std::string>> hashes;
  std::set<std::vector<double>> losses;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const std::string job =
        cluster_->Run(Gpt(kAdam, {.workers = 2, .ps = 2, .chunk_bytes = 4096, .steps = 200}));
    hashes.insert(cluster_->Hashes(job, 200));
    std::vector<double> sequence;
    for (const StepMetrics& step : cluster_->Metrics(job)) sequence.push_back(step.loss);
    EXPECT_EQ(sequence.size(), 200);
    losses.insert(sequence);
  }
  EXPECT_EQ(hashes.size(), 1);
  EXPECT_EQ(losses.size(), 1);
}

}  // namespace
}  // namespace muster::determinism_test
