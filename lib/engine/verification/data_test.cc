// Tests of results that depend on single values: ties, kinks, and ids out of range.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/engine/reference/reference.h"
#include "lib/engine/verification/instance.h"
#include "lib/engine/verification/sketch.h"
#include "lib/graph/lowering/lowering.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::verification::data_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Instance> MakeInstance(const v1::Graph& graph, int64_t batch) {
  auto instance = Instance::Create(graph, {.batch = batch});
  EXPECT_TRUE(instance.ok()) << instance.status();
  return *std::move(instance);
}

// Returns the gradient of sum (y - target)² with respect to x for y = op(x). y - target is 1/2
// everywhere, so each element of y contributes exactly once.
std::vector<double> Gradient(const std::string& op, std::vector<int64_t> shape,
                             const std::vector<double>& x, const SketchAttributes& attributes,
                             const std::vector<double>& y, int outputs = 1) {
  const auto elements = static_cast<int64_t>(y.size());
  Sketch s;
  s.Input("target", {elements});
  s.Add("y", op, {s.Parameter("x", shape)}, attributes, outputs);
  const std::string flat =
      s.Add("flat", "Reshape", {"y"}, {{"shape", std::vector<int64_t>{1, elements}}});
  s.Input("shift", {elements});
  s.Loss("MeanSquaredError", s.Add("shifted", "Add", {flat, "shift"}), "target",
         {{"weight", static_cast<double>(elements)}});
  const auto training = TrainingGraph(s.graph, {});
  EXPECT_TRUE(training.ok()) << training.status();
  const auto instance = MakeInstance(*training, 1);
  instance->Set({{"x", {.shape = shape, .values = x}},
                 {"shift", {.shape = {1, elements}, .values = std::vector<double>(elements, 0.5)}},
                 {"target", {.shape = {1, elements}, .values = y}}});
  EXPECT_TRUE(instance->Run().ok());
  return instance->Gradient("x");
}

TEST(TiesTest, EqualMaximaShareTheGradientOfAReduction) {
  EXPECT_THAT(Gradient("ReduceMax", {2, 4}, {1, 3, 3, 0, 2, 2, 2, 2}, {{"axes", {1}}}, {3, 2}),
              ElementsAre(0, 0.5, 0.5, 0, 0.25, 0.25, 0.25, 0.25));
}

TEST(TiesTest, TheFirstMaximumOfAWindowTakesTheGradient) {
  EXPECT_THAT(Gradient("MaxPool2d", {1, 1, 2, 4}, {5, 5, 1, 7, 5, 5, 7, 7}, {{"kernel", {2, 2}}},
                       {5, 7}, /*outputs=*/2),
              ElementsAre(1, 0, 0, 1, 0, 0, 0, 0));
}

TEST(TiesTest, TheFirstOfEqualElementsIsChosen) {
  EXPECT_THAT(Gradient("TopK", {2, 4}, {1, 3, 3, 3, 2, 0, 2, 2}, {{"k", 2}}, {3, 3, 2, 2},
                       /*outputs=*/2),
              ElementsAre(0, 1, 1, 0, 1, 0, 1, 0));
}

TEST(TiesTest, GradientsOfOverlappingWindowsAddUp) {
  EXPECT_THAT(Gradient("MaxPool2d", {1, 1, 1, 5}, {0, 1, 4, 1, 0},
                       {{"kernel", {1, 3}}, {"strides", {1, 1}}}, {4, 4, 4}, /*outputs=*/2),
              ElementsAre(0, 0, 3, 0, 0));
}

TEST(TiesTest, ReluIsFlatAtZero) {
  EXPECT_THAT(Gradient("Relu", {3}, {-1, 0, 1}, {}, {0, 0, 1}), ElementsAre(0, 0, 1));
}

TEST(TiesTest, KinksHaveTheDerivativesOfOpsMd) {
  EXPECT_THAT(Gradient("Abs", {3}, {-1, 0, 1}, {}, {1, 0, 1}), ElementsAre(-1, 0, 1));
  EXPECT_THAT(Gradient("LeakyRelu", {3}, {-1, 0, 1}, {{"slope", 0.5}}, {-0.5, 0, 1}),
              ElementsAre(0.5, 0.5, 1));
  EXPECT_THAT(Gradient("Clip", {4}, {-2, -1, 1, 2}, {{"min", -1.0}, {"max", 1.0}}, {-1, -1, 1, 1}),
              ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(Gradient("HardSigmoid", {3}, {-1, 0, 1}, {{"alpha", 0.5}}, {0, 0.5, 1}),
              ElementsAre(0, 0.5, 0));
}

// IsNan finds a NaN; rounding and clipping keep it.
TEST(NanTest, IsNanFindsNanAndRoundingKeepsIt) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [op, of_nan] :
       {std::pair("IsNan", 1.0), std::pair("Round", kNan), std::pair("Clip", kNan)}) {
    Sketch s;
    s.graph.set_logits(s.Add("y", op, {s.Input("x", {2})}));
    const auto instance = MakeInstance(s.graph, 2);
    instance->SetInput("x", {0, kNan, std::numeric_limits<double>::infinity(), 0});
    ASSERT_TRUE(instance->Run().ok());
    const std::vector<double> y = instance->Output("y");
    const bool is_flag = std::string(op) == "IsNan";
    EXPECT_EQ(y[0], 0);
    EXPECT_TRUE(is_flag ? y[1] == of_nan : std::isnan(y[1])) << op << " " << y[1];
    EXPECT_EQ(y[2], is_flag ? 0 : std::numeric_limits<double>::infinity());
  }
}

// Padding is never the maximum, even if every pixel is below zero.
TEST(PaddingTest, NeverIsTheMaximum) {
  EXPECT_THAT(Gradient("MaxPool2d", {1, 1, 1, 2}, {-3, -2},
                       {{"kernel", {1, 3}}, {"strides", {1, 1}}, {"padding", {0, 1, 0, 1}}},
                       {-2, -2}, /*outputs=*/2),
              ElementsAre(0, 2));
}

absl::Status RunWithIds(const v1::Graph& graph, std::vector<double> ids) {
  const auto instance = MakeInstance(graph, static_cast<int64_t>(ids.size()));
  instance->SetInput("ids", ids);
  if (graph.inputs_size() > 1) {
    instance->SetInput("updates", std::vector<double>(ids.size(), 1.0));
  }
  return instance->Run();
}

TEST(IdsTest, IdsOutOfRangeAreInvalidArguments) {
  Sketch gather;
  gather.Ids("ids", {});
  gather.graph.set_logits(
      gather.Add("y", "Gather", {gather.Parameter("x", {2, 5}), "ids"}, {{"axis", 1}}));
  Sketch embedding;
  embedding.Ids("ids", {});
  embedding.graph.set_logits(
      embedding.Add("y", "Embedding", {"ids", embedding.Parameter("table", {5, 2})}));

  Sketch elements;
  elements.Ids("ids", {});
  elements.graph.set_logits(
      elements.Add("y", "GatherElements", {elements.Parameter("x", {5}), "ids"}));

  Sketch scatter;
  scatter.Ids("ids", {});
  scatter.Input("updates", {});
  scatter.graph.set_logits(
      scatter.Add("y", "ScatterElements", {scatter.Parameter("x", {5}), "ids", "updates"}));

  EXPECT_TRUE(RunWithIds(scatter.graph, {4, -5, 0}).ok());
  EXPECT_TRUE(RunWithIds(elements.graph, {4, -5, 0}).ok());
  EXPECT_TRUE(RunWithIds(gather.graph, {4, -5, 0}).ok());
  EXPECT_TRUE(RunWithIds(embedding.graph, {4, 0, 0}).ok());
  for (const auto& [graph, ids, id] :
       {std::tuple(scatter.graph, std::vector<double>{0, 1, 5}, "5"),
        std::tuple(elements.graph, std::vector<double>{0, 1, 5}, "5"),
        std::tuple(elements.graph, std::vector<double>{-6, 0, 1}, "-6"),
        std::tuple(gather.graph, std::vector<double>{0, 1, 5}, "5"),
        std::tuple(gather.graph, std::vector<double>{0, -6, 1}, "-6"),
        std::tuple(embedding.graph, std::vector<double>{0, 5, 1}, "5"),
        std::tuple(embedding.graph, std::vector<double>{0, -1, 1}, "-1")}) {
    const absl::Status status = RunWithIds(graph, ids);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(id));
  }
}

TEST(IdsTest, ATargetOutOfRangeIsInvalidUnlessIgnored) {
  Sketch s;
  s.Input("x", {3});
  s.Ids("ids", {});
  s.Loss("SoftmaxCrossEntropy", "x", "ids", {{"ignore_index", -1}});
  EXPECT_TRUE(RunWithIds(s.graph, {2, -1, 0}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(RunWithIds(s.graph, {2, 3, 0})));
  EXPECT_TRUE(absl::IsInvalidArgument(RunWithIds(s.graph, {2, -2, 0})));
}

TEST(IdsTest, ABatchOfIgnoredTargetsHasNoLossAndNoGradient) {
  Sketch s;
  s.Input("x", {3});
  s.Ids("ids", {});
  s.Loss("SoftmaxCrossEntropy", s.Add("y", "Linear", {"x", s.Parameter("w", {2, 3})}), "ids",
         {{"ignore_index", -1}});
  const auto training = TrainingGraph(s.graph, {});
  ASSERT_TRUE(training.ok()) << training.status();
  const auto instance = MakeInstance(*training, 2);
  instance->SetInput("x", {1, 2, 3, 4, 5, 6});
  instance->SetInput("ids", {-1, -1});
  ASSERT_TRUE(instance->Run().ok());
  EXPECT_EQ(instance->loss(), 0);
  EXPECT_THAT(instance->Gradient("w"), testing::Each(0));
}

}  // namespace
}  // namespace muster::verification::data_test
