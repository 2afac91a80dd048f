#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/data/dataset.h"
#include "lib/data/sample_bytes.h"
#include "lib/data/source/open_dataset.h"
#include "lib/status/status.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::synthetic_dataset_test {
namespace {

// A model that reads f32[-1, 101], classes below 7, and a second target of probabilities.
v1::Graph SmallModel() {
  v1::Graph graph;
  auto input = [&](const char* name, v1::DType dtype, std::vector<int64_t> shape) {
    v1::GraphInput& added = *graph.add_inputs();
    added.set_name(name);
    added.set_dtype(dtype);
    added.add_shape(-1);
    for (int64_t size : shape) added.add_shape(size);
  };
  input("x", v1::DTYPE_F32, {101});
  input("class", v1::DTYPE_I32, {});
  input("clicked", v1::DTYPE_F32, {7});
  graph.add_parameters()->set_name("w");
  graph.mutable_parameters(0)->add_shape(7);
  graph.mutable_parameters(0)->add_shape(101);
  auto node = [&](const char* op, std::vector<const char*> inputs,
                  std::vector<const char*> outputs) {
    v1::Node& added = *graph.add_nodes();
    added.set_name(outputs[0]);
    added.set_op(op);
    for (const char* name : inputs) added.add_inputs(name);
    for (const char* name : outputs) added.add_outputs(name);
  };
  node("Linear", {"x", "w"}, {"logits"});
  node("SoftmaxCrossEntropy", {"logits", "class"}, {"loss0", "lse"});
  node("SigmoidCrossEntropy", {"logits", "clicked"}, {"loss1"});
  node("TotalLoss", {"loss0", "loss1"}, {"loss"});
  graph.set_loss("loss");
  return graph;
}

v1::DataSpec Spec(int64_t samples, double holdout = 0, uint64_t seed = 5) {
  v1::DataSpec spec;
  spec.mutable_synthetic()->set_samples(samples);
  spec.mutable_synthetic()->set_holdout(holdout);
  spec.set_seed(seed);
  return spec;
}

struct Batch {
  explicit Batch(size_t rows) : x(101 * rows), classes(rows), clicked(7 * rows) {}
  std::vector<float> x;
  std::vector<int32_t> classes;
  std::vector<float> clicked;
  friend bool operator==(const Batch&, const Batch&) = default;
};

Batch Read(const v1::DataSpec& spec, std::vector<int64_t> samples) {
  auto dataset = OpenDataset(spec, SmallModel());
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  Batch batch(samples.size());
  EXPECT_TRUE((*dataset)
                  ->Read(SamplesOf(0, samples),
                         {BytesOf(batch.x), BytesOf(batch.classes), BytesOf(batch.clicked)})
                  .ok());
  return batch;
}

TEST(SyntheticDatasetTest, NumbersAreNormalAndIdsUniformInTheModelsRange) {
  std::vector<int64_t> samples(2000);
  for (size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<int64_t>(i);
  const Batch batch = Read(Spec(2000), samples);
  double sum = 0, squares = 0, cubes = 0;
  for (float x : batch.x) {
    sum += x;
    squares += x * x;
    cubes += x * x * x;
  }
  const double n = static_cast<double>(batch.x.size());
  EXPECT_NEAR(sum / n, 0, 0.01);  // 4.5 standard errors
  EXPECT_NEAR(squares / n, 1, 0.015);
  EXPECT_NEAR(cubes / n, 0, 0.04);
  std::vector<int> counts(7);
  for (int32_t id : batch.classes) {
    ASSERT_TRUE(0 <= id && id < 7) << id;
    ++counts[id];
  }
  for (int count : counts) EXPECT_NEAR(count, 2000 / 7.0, 70);
  for (float value : batch.clicked) EXPECT_TRUE(value == 0 || value == 1);
}

TEST(SyntheticDatasetTest, ASampleIsAPureFunctionOfSeedAndNumber) {
  const Batch together = Read(Spec(100), {3, 99});
  const Batch alone = Read(Spec(100), {99});
  EXPECT_EQ(std::vector<float>(together.x.begin() + 101, together.x.end()), alone.x);
  EXPECT_EQ(together.classes[1], alone.classes[0]);
  EXPECT_FALSE(Read(Spec(100, 0, 6), {99}) == alone);
  EXPECT_FALSE(Read(Spec(100), {98}).x == alone.x);
}

TEST(SyntheticDatasetTest, HeldOutSamplesFollowTheTrainingSamples) {
  auto dataset = *OpenDataset(Spec(100, 0.25), SmallModel());
  EXPECT_EQ(dataset->samples(), 100);
  EXPECT_EQ(dataset->evaluation_samples(), 25);
  Batch batch(1);
  EXPECT_TRUE(dataset->ReadEvaluation(24, 1, {BytesOf(batch.x), {}, {}}).ok());
  EXPECT_EQ(batch.x, Read(Spec(200), {124}).x);
}

TEST(SyntheticDatasetTest, NeedsSamples) {
  EXPECT_EQ(ReasonOf(OpenDataset(Spec(0), SmallModel()).status()), "DATA_TOO_SMALL");
  EXPECT_EQ(ReasonOf(OpenDataset(Spec(5, 0.9), SmallModel()).status()), "DATA_INVALID");
}

}  // namespace
}  // namespace muster::synthetic_dataset_test
