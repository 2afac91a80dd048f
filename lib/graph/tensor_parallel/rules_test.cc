// Plants faults in the graphs of ranks. Each must be found.
#include "lib/graph/tensor_parallel/rules.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/graph/graph_text.h"
#include "lib/graph/shape_inference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::rules_test {
namespace {

using ::testing::HasSubstr;

// Parameters of rank 0 of 2, of layers with 6 channels and tables with 7 rows.
constexpr absl::string_view kTensors = R"(
    input ids i32[-1, 5]
    input target i32[-1, 5]
    input mask f32[-1, 3, 1, 5]
    parameter whole [6, 6]
    parameter bias [6]
    parameter gain [6]
    parameter scale [1]
    parameter positions [5, 6]
    parameter table [4, 6]
    parameter up [6, 6]
    parameter up.bias [6]
    parameter down [6, 6]
    parameter qkv [12, 6]
    parameter projection [6, 4]
    x = Embedding(ids, whole)
    shared = GradientAllReduce(x)
)";

const TensorSplits& Splits() {
  static const auto& splits = *new TensorSplits({
      {"table", {0, {.size = 7, .units = 7}}},
      {"up", {0, {.size = 12, .units = 12}}},
      {"up.bias", {0, {.size = 12, .units = 12}}},
      {"down", {1, {.size = 12, .units = 12}}},
      {"qkv", {0, {.size = 18, .units = 3, .blocks = 3}}},
      {"projection", {1, {.size = 6, .units = 3}}},
  });
  return splits;
}

absl::StatusOr<Placements> Check(absl::string_view nodes) {
  const v1::Graph graph = ParseGraph(std::string(kTensors) + std::string(nodes));
  const auto types = InferTypes(graph, 2);
  EXPECT_TRUE(types.ok()) << types.status();
  return CheckPlacements(graph, *types, Splits(), {.degree = 2, .rank = 0});
}

TensorPlacement PlacementOf(absl::string_view nodes) {
  const auto placements = Check(std::string(nodes));
  EXPECT_TRUE(placements.ok()) << placements.status();
  return placements.ok() ? placements->at("y") : TensorPlacement{};
}

TEST(RulesTest, RightGraphsPass) {
  using Kind = TensorPlacement::Kind;
  EXPECT_EQ(PlacementOf("y = Linear(shared, up, up.bias)"),
            (TensorPlacement{Kind::kShard, 2, {.size = 12, .units = 12}}));
  EXPECT_EQ(PlacementOf("a = Linear(shared, up)\n y = Linear(a, down)").kind, Kind::kPartial);
  EXPECT_EQ(PlacementOf("a = Linear(shared, up)\n b = Linear(a, down)\n y = AllReduce(b)"),
            TensorPlacement{});
  EXPECT_EQ(PlacementOf("a = Linear(shared, qkv)\n y, lse = SelfAttention(a) heads=2"),
            (TensorPlacement{Kind::kShard, 2, {.size = 6, .units = 3}}));
  EXPECT_EQ(PlacementOf("y = Embedding(ids, table) whole=7").kind, Kind::kPartial);
  EXPECT_EQ(PlacementOf("a = Linear(shared, table)\n"
                        "y, lse = SoftmaxCrossEntropy(a, target) whole=7 ranks=2"),
            TensorPlacement{});
  EXPECT_EQ(PlacementOf("y = GradientAllReduce(scale)").kind, Kind::kShared);
}

struct Fault {
  const char* nodes;
  const char* error;
};

class PlantedFaultTest : public testing::TestWithParam<Fault> {};

TEST_P(PlantedFaultTest, IsFound) {
  const auto placements = Check(GetParam().nodes);
  EXPECT_TRUE(absl::IsInvalidArgument(placements.status())) << GetParam().nodes;
  EXPECT_THAT(std::string(placements.status().message()), HasSubstr(GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(
    All, PlantedFaultTest,
    testing::Values(
        Fault{"y = Linear(x, up)", "'x' meets a part without a GradientAllReduce"},
        Fault{"y = Linear(shared, whole)", "its gradient would count 2 times"},
        Fault{"y = Add(x, shared)", "its gradient would count 2 times"},
        Fault{"a = Linear(shared, up)\n b = Linear(a, down)\n y = Add(b, bias)",
              "reads 'b', a term of a sum, before its AllReduce"},
        Fault{"a = Linear(shared, up)\n y = Linear(a, down, bias)",
              "would add its bias once for each rank"},
        Fault{"y = Linear(shared, up, bias)", "the bias is whole, the weight a part"},
        Fault{"a = Linear(shared, up)\n y, mean, rstd = LayerNorm(a, gain)",
              "takes only whole tensors"},
        Fault{"a = Linear(shared, up)\n y = Linear(a, whole)", "takes only whole tensors"},
        Fault{"a = Linear(shared, up)\n y = Softmax(a)", "takes only whole tensors"},
        Fault{"a = Linear(shared, up)\n y = Add(a, shared)",
              "'shared' is whole and its last dimension does not broadcast"},
        Fault{"a = Linear(shared, up)\n y = Mul(a, scale)",
              "'scale' meets a part without a GradientAllReduce"},
        Fault{"y = AllReduce(x)", "sums 'x', whole"},
        Fault{"a = Linear(shared, up)\n y = AllReduce(a)", "sums 'a', a part of dimension 2"},
        Fault{"a = Linear(shared, up)\n y = GradientAllReduce(a)", "takes 'a', a part"},
        Fault{"y = GradientAllReduce(shared)", "takes 'shared', whole, with a part"},
        Fault{"y = Embedding(ids, table) first=1 whole=7", "it is from 0 of 7"},
        Fault{"y = Embedding(ids, table)", "takes its part as from 0 of 4"},
        Fault{"y = Embedding(ids, whole) whole=7", "has a part of a tensor that is whole"},
        Fault{"a = Linear(shared, table)\n y = CorrectCount(a, target)",
              "takes only whole tensors"},
        Fault{"a = Linear(shared, table)\n y, lse = SoftmaxCrossEntropy(a, target) whole=7",
              "attribute 'ranks' is 1, must be 2"},
        Fault{"a = Linear(shared, table)\n y, lse = SoftmaxCrossEntropy(a, target) ranks=2",
              "takes its part as from 0 of 4"},
        Fault{"a = Linear(shared, up)\n y = Dropout(a) rate=0.5 salt=0",
              "takes its part as from 0 of 6"},
        Fault{"a = Linear(shared, qkv)\n y = Dropout(a) rate=0.5 salt=0 whole=18",
              "'a' has 3 blocks, must have 1"},
        Fault{"a = Linear(shared, qkv)\n y, lse = SelfAttention(a) heads=1",
              "attribute 'heads' is 1, must be 2"},
        Fault{"a = Linear(shared, up)\n y, lse = SelfAttention(a) heads=2",
              "'a' has 1 blocks, must have 3"},
        Fault{"a = Linear(shared, qkv)\n b, lse = SelfAttention(a) heads=2\n y = Relu(lse)",
              "must be a part of the last dimension"},
        Fault{"y = Linear(shared, up)\n logits y", "output 'y' is a part of dimension 2"},
        Fault{"a, b = Split(x) axis=-1 sizes=[3, 3]\n c = Linear(shared, up)\n y = Add(c, x)",
              "'x' meets a part without a GradientAllReduce"}));

// The shape of a slice follows from its split.
TEST(RulesTest, AParameterOfAnotherSizeIsFound) {
  TensorSplits splits = Splits();
  splits["up"].split = {.size = 10, .units = 10};
  const v1::Graph graph = ParseGraph(kTensors);
  EXPECT_EQ(CheckPlacements(graph, InferTypes(graph, 2).value(), splits, {.degree = 2}).status(),
            absl::InvalidArgumentError("dimension 0 of 'up' has 6 elements instead of 5"));
}

}  // namespace
}  // namespace muster::rules_test
