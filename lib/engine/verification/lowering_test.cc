// A lowered graph computes the same values as the original: fused or not, recomputed or not.
#include "lib/graph/lowering/lowering.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/engine/reference/reference.h"
#include "lib/engine/verification/instance.h"
#include "lib/engine/verification/models.h"
#include "lib/engine/verification/sketch.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::verification::lowering_test {
namespace {

using ::testing::Contains;
using ::testing::Not;

constexpr int64_t kBatch = 3;

std::vector<std::string> Ops(const v1::Graph& graph) {
  std::vector<std::string> ops;
  for (const v1::Node& node : graph.nodes()) ops.push_back(node.op());
  return ops;
}

std::unique_ptr<Instance> MakeInstance(const absl::StatusOr<v1::Graph>& graph) {
  EXPECT_TRUE(graph.ok()) << graph.status();
  auto instance = Instance::Create(*graph, {.batch = kBatch});
  EXPECT_TRUE(instance.ok()) << instance.status();
  return *std::move(instance);
}

std::unique_ptr<Instance> RunTraining(const v1::Graph& graph, const LoweringOptions& options,
                                      const reference::Tensors& given) {
  std::unique_ptr<Instance> instance = MakeInstance(TrainingGraph(graph, options));
  instance->Set(given);
  EXPECT_TRUE(instance->Run({.seed = 5, .step = 2}).ok());
  return instance;
}

// The tolerance is relative to the largest value: products are summed in another order.
constexpr double kTolerance = 1e-6;

void ExpectSameValues(const std::vector<double>& a, const std::vector<double>& b,
                      double tolerance = kTolerance) {
  ASSERT_EQ(a.size(), b.size());
  double largest = 1e-6;
  for (double value : b) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance * largest) << i;
}

void ExpectFusionKeepsTheResults(const v1::Graph& graph, int64_t ids,
                                 const std::vector<std::string>& fused_ops,
                                 double tolerance = kTolerance) {
  const reference::Tensors given = RandomTensors(graph, kBatch, ids, /*seed=*/4);
  const auto plain = RunTraining(graph, {.fuse = false}, given);
  const auto fused = RunTraining(graph, {.fuse = true}, given);

  for (const std::string& op : fused_ops) {
    EXPECT_THAT(Ops(plain->graph()), Not(Contains(op)));
    EXPECT_THAT(Ops(fused->graph()), Contains(op));
  }
  EXPECT_NEAR(fused->loss(), plain->loss(), 1e-6 * plain->loss());
  ExpectSameValues(fused->Output(graph.logits()), plain->Output(graph.logits()));
  for (const v1::Parameter& parameter : graph.parameters()) {
    SCOPED_TRACE(parameter.name());
    ExpectSameValues(fused->Gradient(parameter.name()), plain->Gradient(parameter.name()),
                     tolerance);
  }
}

TEST(FusionTest, ActivationsJoinLinearLayers) {
  ExpectFusionKeepsTheResults(
      Perceptron(), 5, {"LinearRelu", "LinearGelu", "LinearGradWeightBias", "LinearGradInputGelu"});
}

TEST(FusionTest, ReluJoinsConvolutionsAndBatchNorms) {
  ExpectFusionKeepsTheResults(ConvolutionNet(), 5,
                              {"Conv2dRelu", "BatchNormRelu", "BatchNormReluGrad",
                               "BatchNormAddRelu", "BatchNormAddReluGrad"});
}

TEST(FusionTest, ResidualsJoinLayerNorms) {
  ExpectFusionKeepsTheResults(Transformer(), 11,
                              {"AddLayerNorm", "AddLayerNormGrad", "LinearGelu"});
}

TEST(FusionTest, GradientsOfATensorWithTwoReadersAreAddedUpInItsNorm) {
  ExpectFusionKeepsTheResults(Transformer({.norms_last = true}), 11, {"AccumulateLayerNormGrad"});
  ExpectFusionKeepsTheResults(ConvolutionNet(/*residuals=*/2), 5,
                              {"AccumulateBatchNormAddReluGrad"});
}

TEST(FusionTest, PlainAttentionBecomesOneOp) {
  // Attention recomputes the weights from the log of their sum, which is a different algorithm.
  ExpectFusionKeepsTheResults(Transformer({.fused_attention = false}), 11, {"Attention"},
                              3 * kTolerance);
}

// In this graph other nodes also read the sum before a norm, and the value before an activation.
TEST(FusionTest, AnIntermediateWithOtherReadersIsKept) {
  Sketch s;
  s.Input("input", {6});
  s.Input("target", {5});
  const std::string x = s.Add("x", "Linear", {"input", s.Parameter("w", {5, 6})});
  const std::string relu = s.Add("relu", "Relu", {x});
  const std::string gelu = s.Add("gelu", "Gelu", {x});
  const std::string sum = s.Add("sum", "Add", {relu, gelu});
  const std::string norm =
      s.Add("norm", "LayerNorm", {sum, s.Parameter("gain", {5}), s.Parameter("bias", {5})}, {}, 3);
  const std::string y = s.Add("y", "Mul", {norm, sum});
  s.graph.set_logits(s.Add("z", "Add", {y, x}));
  s.Loss("MeanSquaredError", "z", "target");
  ExpectFusionKeepsTheResults(s.graph, 5, {});
}

TEST(FusionTest, EvaluationFoldsBatchNormsIntoConvolutions) {
  const v1::Graph graph = ConvolutionNet();
  reference::Tensors given = RandomTensors(graph, kBatch, 5, /*seed=*/4);
  auto run = [&](bool fuse) {
    std::unique_ptr<Instance> instance = MakeInstance(InferenceGraph(graph, {.fuse = fuse}));
    instance->Set(given);
    EXPECT_TRUE(instance->Run().ok());
    return instance;
  };
  const auto plain = run(false), fused = run(true);

  EXPECT_THAT(Ops(plain->graph()), Contains("BatchNormInference"));
  EXPECT_THAT(Ops(fused->graph()), Contains("Conv2dBatchNormRelu"));
  EXPECT_NEAR(fused->loss(), plain->loss(), 1e-6 * plain->loss());
  ExpectSameValues(fused->Output(fused->graph().logits()), plain->Output(plain->graph().logits()));
}

TEST(InferenceTest, EvaluatesWithoutDropoutAndWithRunningStatistics) {
  const v1::Graph graph = Transformer({.dropout = 0.5}), without = Transformer();
  const reference::Tensors given = RandomTensors(graph, kBatch, 11, /*seed=*/4);
  const auto instance = MakeInstance(InferenceGraph(graph, {}));
  instance->Set(given);
  ASSERT_TRUE(instance->Run({.seed = 1}).ok());
  const double loss = reference::Evaluate(without, given).at(without.loss()).values[0];
  EXPECT_NEAR(instance->loss(), loss, 2e-6 * loss);

  v1::Graph images = ConvolutionNet();
  reference::Tensors running = RandomTensors(images, kBatch, 5, /*seed=*/4);
  for (const v1::Parameter& parameter : images.parameters()) {
    if (!parameter.has_statistic_momentum()) continue;
    double value = 0.3;
    for (double& v : running[parameter.name()].values) v = value += 0.2;
  }
  const auto evaluated = MakeInstance(InferenceGraph(images, {}));
  evaluated->Set(running);
  ASSERT_TRUE(evaluated->Run().ok());
  for (v1::Node& node : *images.mutable_nodes()) {
    if (node.op() != "BatchNorm") continue;
    node.set_op("BatchNormInference");
    node.mutable_outputs()->DeleteSubrange(1, 4);
  }
  const double image_loss = reference::Evaluate(images, running).at(images.loss()).values[0];
  EXPECT_NEAR(evaluated->loss(), image_loss, 2e-6 * image_loss);
}

TEST(RecomputationTest, RepeatsToTheBitInLessMemory) {
  for (v1::Precision precision : {v1::FP32, v1::BF16, v1::FP16}) {
    SCOPED_TRACE(v1::Precision_Name(precision));
    const v1::Graph graph = Transformer({.blocks = 6, .dropout = 0.2});
    const reference::Tensors given = RandomTensors(graph, kBatch, 11, /*seed=*/4);
    const auto kept = RunTraining(graph, {.precision = precision}, given);
    const auto recomputed = RunTraining(graph, {.precision = precision, .recompute = true}, given);

    EXPECT_EQ(recomputed->loss(), kept->loss());
    for (const v1::Parameter& parameter : graph.parameters()) {
      EXPECT_EQ(recomputed->Gradient(parameter.name()), kept->Gradient(parameter.name()))
          << parameter.name();
    }
    EXPECT_LT(recomputed->arena_bytes(), kept->arena_bytes() * 2 / 3);
  }
}

TEST(RecomputationTest, BatchNormsGiveTheSameStatistics) {
  const v1::Graph graph = ConvolutionNet();
  const reference::Tensors given = RandomTensors(graph, kBatch, 5, /*seed=*/4);
  const auto kept = RunTraining(graph, {}, given);
  const auto recomputed = RunTraining(graph, {.recompute = true}, given);
  EXPECT_EQ(recomputed->loss(), kept->loss());
  for (const v1::Parameter& parameter : graph.parameters()) {
    EXPECT_EQ(recomputed->Gradient(parameter.name()), kept->Gradient(parameter.name()))
        << parameter.name();
  }
}

}  // namespace
}  // namespace muster::verification::lowering_test
