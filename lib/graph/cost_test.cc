#include "lib/graph/cost.h"

#include "gtest/gtest.h"
#include "lib/graph/autodiff.h"
#include "lib/graph/graph_text.h"
#include "lib/graph/shape_inference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::cost_test {
namespace {

// Returns the cost of the last node.
Cost CostOf(const char* text, int64_t batch) {
  const v1::Graph graph = ParseGraph(text);
  return NodeCost(*graph.nodes().rbegin(), InferTypes(graph, batch).value());
}

TEST(NodeCostTest, CountsTheFirstConvolutionOfResNet50) {
  const Cost cost = CostOf(R"(
      input x f32[-1, 3, 224, 224]
      parameter w [64, 3, 7, 7]
      y = Conv2d(x, w) strides=[2, 2] padding=[3, 3, 3, 3])",
                           8);

  // 118,013,952 multiply-adds per image, the usual count for torchvision's model.
  EXPECT_EQ(cost.flops, 8 * 2 * 118013952LL);
  EXPECT_EQ(cost.bytes, 4 * (8 * 3 * 224 * 224 + 64 * 3 * 49 + 8 * 64 * 112 * 112));
}

TEST(NodeCostTest, GroupsDivideAConvolution) {
  EXPECT_EQ(CostOf(R"(
      input x f32[-1, 8, 5, 5]
      parameter w [16, 2, 3, 3]
      y = Conv2d(x, w) groups=4 padding=[1, 1, 1, 1])",
                   1)
                .flops,
            2 * 16 * 25 * 2 * 9);
}

TEST(NodeCostTest, MatrixProductsOfAnyShape) {
  EXPECT_EQ(CostOf(R"(
      input x f32[-1, 7, 3]
      parameter w [5, 3]
      y = Linear(x, w))",
                   2)
                .flops,
            2 * 2 * 7 * 3 * 5);
  EXPECT_EQ(CostOf(R"(
      input a f32[-1, 7, 3]
      parameter b [4, 1, 7, 5]
      y = MatMul(a, b) transpose_a=1)",
                   2)
                .flops,
            2 * 4 * 2 * 3 * 7 * 5);
}

TEST(NodeCostTest, AttentionCountsBothProductsInFull) {
  EXPECT_EQ(CostOf(R"(
      input qkv f32[-1, 16, 96]
      y, lse = SelfAttention(qkv) heads=4 causal=1)",
                   2)
                .flops,
            2 * 2 * 2 * 16 * 16 * 32);
  EXPECT_EQ(CostOf(R"(
      input q f32[-1, 16, 32]
      input k f32[-1, 10, 32]
      input v f32[-1, 10, 8]
      y, lse = Attention(q, k, v) heads=4)",
                   2)
                .flops,
            2 * 2 * 16 * 10 * (32 + 8));
}

TEST(NodeCostTest, ARecurrenceMultipliesAtEveryStepOfEveryDirection) {
  EXPECT_EQ(CostOf(R"(
      input x f32[-1, 7, 5]
      parameter w [2, 12, 5]
      parameter r [2, 12, 3]
      parameter bias [2, 24]
      y, h, c, state = Lstm(x, w, r, bias))",
                   3)
                .flops,
            2 * 3 * 7 * 2 * 12 * (5 + 3));
}

TEST(NodeCostTest, ElementwiseNodesCostBytesAndAliasesNothing) {
  EXPECT_EQ(CostOf("input x f32[-1, 10]\n y = Add(x, x)", 2).bytes, 4 * 2 * 20);
  EXPECT_EQ(CostOf("input x f32[-1, 10]\n y = Add(x, x)", 2).flops, 0);
  EXPECT_EQ(CostOf("input x f32[-1, 10]\n y = Reshape(x) shape=[-1]", 2).bytes, 0);
  EXPECT_EQ(CostOf(R"(
      input ids i32[-1, 10]
      parameter table [1000, 16]
      y = Embedding(ids, table))",
                   2)
                .bytes,
            4 * (20 + 2 * 20 * 16));
}

TEST(GraphCostTest, BackwardOfLinearLayersIsTwiceForwardExceptTheFirst) {
  const v1::Graph forward = ParseGraph(R"(
      input x f32[-1, 8]
      input target f32[-1, 8]
      parameter v [8, 8]
      parameter w [8, 8]
      h = Linear(x, v)
      y = Linear(h, w)
      loss = MeanSquaredError(y, target)
      loss loss)");

  const TrainingCost cost = GraphCost(forward, 4).value();

  EXPECT_EQ(cost.forward.flops, 2 * (2 * 4 * 8 * 8));
  EXPECT_EQ(cost.backward.flops, 3 * (2 * 4 * 8 * 8));
  EXPECT_GT(cost.backward.bytes, cost.forward.bytes);
}

TEST(GraphCostTest, BackwardOfConvolutionsMatMulsAttentionAndRecurrencesIsTwiceTheirForward) {
  // Every operand depends on a parameter.
  for (const char* nodes : {R"(
           a = Add(x, shift)
           b = Reshape(a) shape=[0, 4, 6, 6]
           c = Conv2d(b, kernel) padding=[1, 1, 1, 1]
           y = Reshape(c) shape=[0, 12, 12])",
                            R"(
           a = Add(x, shift)
           b = Reshape(a) shape=[0, 4, 6, 6]
           c = ConvTranspose2d(b, kernel) padding=[1, 1, 1, 1]
           y = Reshape(c) shape=[0, 12, 12])",
                            R"(
           a = Add(x, shift)
           y = MatMul(a, a))",
                            R"(
           a = Add(x, shift)
           y, lse = Attention(a, a, a) heads=3)",
                            R"(
           a = Add(x, shift)
           y, h, state = Gru(a, w, r, bias))"}) {
    v1::Graph forward = ParseGraph(std::string(R"(
        input x f32[-1, 12, 12]
        input target f32[-1, 12, 12]
        parameter shift [12]
        parameter kernel [4, 4, 3, 3]
        parameter w [1, 36, 12]
        parameter r [1, 36, 12]
        parameter bias [1, 72]
        )") + nodes + R"(
        loss = MeanSquaredError(y, target)
        loss loss)");
    // Remove the parameters of the other cases.
    auto& parameters = *forward.mutable_parameters();
    for (int p = parameters.size() - 1; p >= 0; --p) {
      bool is_read = false;
      for (const v1::Node& node : forward.nodes()) {
        for (const std::string& input : node.inputs()) is_read |= input == parameters[p].name();
      }
      if (!is_read) parameters.DeleteSubrange(p, 1);
    }

    const TrainingCost cost = GraphCost(forward, 3).value();

    EXPECT_GT(cost.forward.flops, 0) << nodes;
    EXPECT_EQ(cost.backward.flops, 2 * cost.forward.flops) << nodes;
  }
}

TEST(CountParametersTest, CountsStatisticsAndTrainedParametersSeparately) {
  const ParameterCount count = CountParameters(ParseGraph(R"(
      parameter w [3, 5]
      parameter scalar []
      statistic mean [4])"));

  EXPECT_EQ(count.trained, 16);
  EXPECT_EQ(count.statistic, 4);
}

}  // namespace
}  // namespace muster::cost_test
