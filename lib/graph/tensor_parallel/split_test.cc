#include "lib/graph/tensor_parallel/split.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "lib/graph/autodiff.h"
#include "lib/graph/graph_text.h"
#include "lib/graph/shape_inference.h"
#include "lib/graph/tensor_parallel/linear_form.h"
#include "lib/graph/zoo/zoo.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::split_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<SplitGraph> Split(const v1::Graph& graph, int degree = 2, int rank = 0) {
  return SplitTensors(graph, InferTypes(graph, 2).value(), {.degree = degree, .rank = rank});
}

std::string ErrorOf(absl::string_view text, int degree = 2) {
  const auto split = Split(ParseGraph(text), degree);
  EXPECT_TRUE(absl::IsInvalidArgument(split.status())) << split.status();
  return std::string(split.status().message());
}

std::vector<std::string> Lines(absl::string_view text, int degree = 2, int rank = 0) {
  const auto split = Split(ParseGraph(text), degree, rank);
  EXPECT_TRUE(split.ok()) << split.status();
  if (!split.ok()) return {};
  const auto training = Differentiate(split->graph);
  EXPECT_TRUE(training.ok()) << training.status();
  return NodeLines(split->graph);
}

v1::Graph Zoo(const std::string& text) {
  v1::ModelSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, spec.mutable_zoo()));
  return BuildModel(spec).value();
}

std::vector<int64_t> ShapeOf(const v1::Graph& graph, const std::string& parameter) {
  for (const v1::Parameter& p : graph.parameters()) {
    if (p.name() == parameter) return {p.shape().begin(), p.shape().end()};
  }
  return {};
}

// The first layer is not divided: Add reads all of it.
TEST(SplitTensorsTest, TwoLayersAreDividedAlongTheDimensionBetweenThem) {
  constexpr absl::string_view kText = R"(
      input x f32[-1, 3]
      input target f32[-1, 3]
      parameter first [3, 3]
      parameter expand [5, 3]
      parameter expand.bias [5]
      parameter contract [3, 5]
      parameter contract.bias [3]
      h = Linear(x, first)
      up = Linear(h, expand, expand.bias)
      gelu = Gelu(up)
      down = Linear(gelu, contract, contract.bias)
      y = Add(h, down)
      loss = MeanSquaredError(y, target)
      loss loss)";
  EXPECT_THAT(Lines(kText),
              ElementsAre("h = Linear(x, first)", "h shared = GradientAllReduce(h)",
                          "up = Linear(h shared, expand, expand.bias)", "gelu = Gelu(up)",
                          "down term = Linear(gelu, contract)", "down sum = AllReduce(down term)",
                          "down = Add(down sum, contract.bias)", "y = Add(h, down)",
                          "loss = MeanSquaredError(y, target)"));
  const SplitGraph split = Split(ParseGraph(kText), 2, 1).value();
  EXPECT_THAT(ShapeOf(split.graph, "first"), ElementsAre(3, 3));
  EXPECT_THAT(ShapeOf(split.graph, "expand"), ElementsAre(2, 3));
  EXPECT_THAT(ShapeOf(split.graph, "expand.bias"), ElementsAre(2));
  EXPECT_THAT(ShapeOf(split.graph, "contract"), ElementsAre(3, 2));
  EXPECT_THAT(ShapeOf(split.graph, "contract.bias"), ElementsAre(3));
  EXPECT_THAT(
      split.slices,
      ElementsAre(ParameterSlice{.run_elements = 9}, ParameterSlice{.offset = 9, .run_elements = 6},
                  ParameterSlice{.offset = 3, .run_elements = 2},
                  ParameterSlice{.offset = 3, .runs = 3, .run_elements = 2, .stride = 5},
                  ParameterSlice{.run_elements = 3}));
}

// An exported model has a MatMul and an Add for a layer, a gate, and matrices among its rows.
TEST(SplitTensorsTest, LayersOfAnExportedModelAreDividedToo) {
  EXPECT_THAT(Lines(R"(
      input x f32[-1, 4, 6]
      input target f32[-1, 4, 6]
      parameter gate [6, 8]
      parameter up [6, 8]
      parameter bias [8]
      parameter down [8, 6]
      flat = Reshape(x) shape=[-1, 6]
      a = MatMul(flat, gate)
      b = MatMul(flat, up)
      biased = Add(b, bias)
      silu = Silu(a)
      product = Mul(silu, biased)
      rows = Reshape(product) shape=[-1, 4, 8]
      dropped = Dropout(rows) rate=0.5 salt=1
      y = MatMul(dropped, down)
      loss = MeanSquaredError(y, target)
      loss loss)"),
              ElementsAre("flat = Reshape(x)", "a = MatMul(flat, gate)", "b = MatMul(flat, up)",
                          "biased = Add(b, bias)", "silu = Silu(a)", "product = Mul(silu, biased)",
                          "rows = Reshape(product)", "dropped = Dropout(rows)",
                          "y term = MatMul(dropped, down)", "y = AllReduce(y term)",
                          "loss = MeanSquaredError(y, target)"));
}

// A scale that is a parameter of one element meets parts, so its gradient is summed, too.
TEST(SplitTensorsTest, EveryWholeTensorThatMeetsPartsHasItsGradientSummed) {
  EXPECT_THAT(Lines(R"(
      input x f32[-1, 3]
      input target f32[-1, 3]
      parameter up [4, 3]
      parameter down [3, 4]
      parameter scale [1]
      a = Linear(x, up)
      b = Mul(a, scale)
      y = Linear(b, down)
      loss = MeanSquaredError(y, target)
      loss loss)"),
              ElementsAre("a = Linear(x, up)", "scale shared = GradientAllReduce(scale)",
                          "b = Mul(a, scale shared)", "y term = Linear(b, down)",
                          "y = AllReduce(y term)", "loss = MeanSquaredError(y, target)"));
}

constexpr absl::string_view kTied = R"(
    input x i32[-1, 4]
    input target i32[-1, 4]
    parameter table [7, 3]
    rows = Embedding(x, table)
    logits = Linear(rows, table)
    loss, lse = SoftmaxCrossEntropy(logits, target)
    loss loss
    logits logits)";

TEST(SplitTensorsTest, ATiedTableIsDividedByRowsInBothUses) {
  EXPECT_THAT(
      Lines(kTied),
      ElementsAre("rows term = Embedding(x, table)", "rows = AllReduce(rows term)",
                  "rows shared = GradientAllReduce(rows)", "logits = Linear(rows shared, table)",
                  "loss, lse = SoftmaxCrossEntropy(logits, target)"));
  const SplitGraph split = Split(ParseGraph(kTied), 3, 1).value();
  EXPECT_THAT(ShapeOf(split.graph, "table"), ElementsAre(2, 3));
  EXPECT_EQ(split.graph.logits(), "");
  const auto& embedding = split.graph.nodes(0).attributes();
  EXPECT_EQ(embedding.at("first").i(), 3);
  EXPECT_EQ(embedding.at("whole").i(), 7);
  const auto& loss = split.graph.nodes(4).attributes();
  EXPECT_EQ(loss.at("first").i(), 3);
  EXPECT_EQ(loss.at("whole").i(), 7);
  EXPECT_EQ(loss.at("ranks").i(), 3);
}

// PyTorch exports linear layers in this form.
TEST(SplitTensorsTest, ProductsWithTransposedWeightsBecomeLinearLayers) {
  v1::Graph graph = ParseGraph(R"(
    input x f32[-1, 4, 6]
    input target f32[-1, 4, 6]
    parameter up [8, 6]
    parameter down [6, 8]
    up_back = Transpose(up) permutation=[1, 0]
    a = MatMul(x, up_back)
    b = Relu(a)
    down_back = Transpose(down) permutation=[1, 0]
    y = MatMul(b, down_back)
    loss = MeanSquaredError(y, target)
    loss loss)");
  UseLinearForm(InferTypes(graph, 2).value(), graph);
  EXPECT_THAT(NodeLines(graph),
              ElementsAre("a = Linear(x, up)", "b = Relu(a)", "y = Linear(b, down)",
                          "loss = MeanSquaredError(y, target)"));
}

TEST(SplitTensorsTest, ATransposeThatAnotherNodeReadsStays) {
  v1::Graph graph = ParseGraph(R"(
    input x f32[-1, 3]
    input target f32[-1, 3]
    parameter w [3, 3]
    back = Transpose(w) permutation=[1, 0]
    a = MatMul(x, back)
    b = MatMul(a, back) transpose_b=1
    loss = MeanSquaredError(b, target)
    loss loss)");
  UseLinearForm(InferTypes(graph, 2).value(), graph);
  EXPECT_THAT(NodeLines(graph),
              ElementsAre("back = Transpose(w)", "a = Linear(x, w)", "b = MatMul(a, back)",
                          "loss = MeanSquaredError(b, target)"));
}

// CorrectCount needs all logits, so the head is whole, and so is the table that is its weight.
TEST(SplitTensorsTest, ATableIsDividedOnlyIfAllItsUsesAre) {
  EXPECT_THAT(ErrorOf(std::string(kTied) + R"(
    correct = CorrectCount(logits, target)
    correct correct)"),
              HasSubstr("node 'correct' (CorrectCount) needs all of 'logits' on each device"));
}

// A table with fewer rows than columns is not worth a sum.
TEST(SplitTensorsTest, ASmallTableIsWhole) {
  EXPECT_THAT(ErrorOf(R"(
      input x i32[-1, 4]
      input target f32[-1, 4, 3]
      parameter table [2, 3]
      y = Embedding(x, table)
      loss = MeanSquaredError(y, target)
      loss loss)"),
              HasSubstr("node 'y' (Embedding) cannot be divided"));
}

TEST(SplitTensorsTest, AttentionIsDividedByHeads) {
  const v1::Graph graph =
      Zoo("name: 'gpt2' args { fields { key: 'size' value { string_value: '1.5b' } } "
          "fields { key: 'layers' value { number_value: 1 } } }");
  for (int rank : {0, 1}) {
    const SplitGraph split = Split(graph, 2, rank).value();
    const int64_t heads = rank == 0 ? 13 : 12;
    EXPECT_THAT(ShapeOf(split.graph, "blocks.0.attention.qkv.weight"),
                ElementsAre(3 * heads * 64, 1600));
    EXPECT_THAT(ShapeOf(split.graph, "blocks.0.attention.qkv.bias"), ElementsAre(3 * heads * 64));
    EXPECT_THAT(ShapeOf(split.graph, "blocks.0.attention.projection.weight"),
                ElementsAre(1600, heads * 64));
    EXPECT_THAT(ShapeOf(split.graph, "token_embedding.weight"),
                ElementsAre(rank == 0 ? 25129 : 25128, 1600));
    EXPECT_THAT(ShapeOf(split.graph, "position_embedding.weight"), ElementsAre(1024, 1600));
  }
}

TEST(SplitTensorsTest, DropoutOfAttentionKeepsItWhole) {
  const SplitGraph split = Split(Zoo("name: 'gpt' args { fields { key: 'attention_dropout' "
                                     "value { number_value: 0.1 } } }"))
                               .value();
  EXPECT_THAT(ShapeOf(split.graph, "blocks.0.attention.qkv.weight"), ElementsAre(384, 128));
  EXPECT_THAT(ShapeOf(split.graph, "blocks.0.attention.projection.weight"), ElementsAre(128, 128));
  EXPECT_THAT(ShapeOf(split.graph, "blocks.0.mlp.expand.weight"), ElementsAre(256, 128));
}

TEST(SplitTensorsTest, MoreRanksThanHeadsAreRefused) {
  const auto split = Split(Zoo("name: 'gpt'"), 5);
  EXPECT_EQ(split.status(),
            absl::InvalidArgumentError(
                "node 'blocks.0.attention' (SelfAttention) has 4 heads, which 5 tensor-parallel "
                "devices cannot share: use at most 4"));
}

TEST(SplitTensorsTest, AModelOfConvolutionsIsRefused) {
  const auto split = Split(Zoo("name: 'resnet50'"));
  EXPECT_TRUE(absl::IsInvalidArgument(split.status()));
  EXPECT_THAT(std::string(split.status().message()),
              HasSubstr("the model has no part that 2 tensor-parallel devices can share: "));
}

// Every model of the zoo is divided by the rules, or refused with a reason.
TEST(SplitTensorsTest, ModelsOfTheZooAreDividedOrRefused) {
  for (const char* name :
       {"mlp", "lenet", "gpt", "gpt2", "bert", "lstm_lm", "gnmt", "transformer", "ncf"}) {
    const v1::Graph graph = Zoo(std::string("name: '") + name + "'");
    for (int rank : {0, 1}) {
      const auto split = Split(graph, 2, rank);
      if (split.ok()) {
        EXPECT_TRUE(Differentiate(split->graph).ok()) << name;
      } else {
        EXPECT_TRUE(absl::IsInvalidArgument(split.status())) << name << " " << split.status();
      }
    }
  }
}

}  // namespace
}  // namespace muster::split_test
