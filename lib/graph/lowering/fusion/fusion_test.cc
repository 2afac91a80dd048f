#include "lib/graph/lowering/fusion/fusion.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/graph/autodiff.h"
#include "lib/graph/graph_text.h"
#include "lib/graph/shape_inference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::fusion_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using Pass = void (*)(v1::Graph&);

// Runs a pass and returns the graph. Checks that its types can still be inferred.
v1::Graph After(Pass pass, v1::Graph graph) {
  pass(graph);
  EXPECT_TRUE(InferTypes(graph, 3).ok()) << InferTypes(graph, 3).status();
  return graph;
}

v1::Graph After(void (*pass)(const TensorTypes&, v1::Graph&), v1::Graph graph) {
  pass(InferTypes(graph, 2).value(), graph);
  EXPECT_TRUE(InferTypes(graph, 3).ok()) << InferTypes(graph, 3).status();
  return graph;
}

// ---------------------------------------------------------------- Linear

constexpr absl::string_view kLinear = R"(
    input x f32[-1, 4]
    input target f32[-1, 3]
    parameter w [3, 4]
    parameter b [3]
    )";

std::string Activated(absl::string_view op) {
  return absl::StrCat(kLinear, "a = Linear(x, w, b)\n y = ", op, R"(
      loss = MeanSquaredError(y, target)
      loss loss)");
}

TEST(FuseLinearReluTest, BackwardReadsOnlyTheOutput) {
  const v1::Graph graph =
      After(FuseLinearRelu, Differentiate(ParseGraph(Activated("Relu(a)"))).value());

  EXPECT_THAT(NodeLines(graph),
              ElementsAre("y = LinearRelu(x, w, b)", "loss = MeanSquaredError(y, target)",
                          "d(y) = MeanSquaredErrorGrad(y, target)", "d(a) = ReluGrad(d(y), y)",
                          "d(b) = LinearGradBias(d(a))", "d(w) = LinearGradWeight(d(a), x)"));
}

TEST(FuseLinearReluTest, NotIfAnotherNodeOrTheCallerReadsTheSum) {
  const std::string other = absl::StrCat(kLinear, R"(
      a = Linear(x, w)
      r = Relu(a)
      y = Add(a, r)
      loss = MeanSquaredError(y, target)
      loss loss)");
  const std::string caller = absl::StrCat(Activated("Relu(a)"), "\n logits a");

  for (const std::string& text : {other, caller}) {
    const v1::Graph graph = ParseGraph(text);
    EXPECT_THAT(NodeLines(After(FuseLinearRelu, graph)), ElementsAreArray(NodeLines(graph)));
  }
}

TEST(FuseLinearGeluTest, TheSumStaysForBackward) {
  const v1::Graph graph =
      After(FuseLinearGelu, Differentiate(ParseGraph(Activated("Gelu(a) exact=1"))).value());

  EXPECT_EQ(NodeLines(graph)[0], "y, a = LinearGelu(x, w, b)");
  EXPECT_EQ(graph.nodes(0).attributes().at("exact").i(), 1);
  EXPECT_THAT(NodeLines(graph), Contains("d(a) = GeluGrad(d(y), a)"));
}

TEST(FuseLinearGeluTest, NotWithAnotherActivation) {
  const v1::Graph graph = After(FuseLinearGelu, ParseGraph(Activated("Silu(a)")));

  EXPECT_EQ(NodeLines(graph)[0], "a = Linear(x, w, b)");
}

constexpr absl::string_view kTwoLayers = R"(
    input x f32[-1, 6]
    input target f32[-1, 3]
    parameter w [8, 6]
    parameter b [8]
    parameter v [3, 8]
    parameter c [3]
    a = Linear(x, w, b)
    h = Gelu(a) exact=1
    y = Linear(h, v, c)
    loss = MeanSquaredError(y, target)
    loss loss)";

TEST(FuseLinearGradTest, TheGradientsOfBiasAndWeightAreOneNode) {
  const v1::Graph graph = After(FuseLinearGradBias, Differentiate(ParseGraph(kTwoLayers)).value());

  EXPECT_THAT(NodeLines(graph), Contains("d(v), d(c) = LinearGradWeightBias(d(y), h)"));
  EXPECT_THAT(NodeLines(graph), Contains("d(w), d(b) = LinearGradWeightBias(d(a), x)"));
  EXPECT_THAT(NodeLines(graph), Not(Contains(HasSubstr("LinearGradBias"))));
}

TEST(FuseLinearGradTest, GelusDerivativeJoinsTheProductBeforeIt) {
  const v1::Graph graph = After(FuseLinearGradGelu, Differentiate(ParseGraph(kTwoLayers)).value());

  EXPECT_THAT(NodeLines(graph), Contains("d(a) = LinearGradInputGelu(d(y), v, a)"));
  EXPECT_THAT(NodeLines(graph), Not(Contains(HasSubstr("GeluGrad("))));
  for (const v1::Node& node : graph.nodes()) {
    if (node.op() != "LinearGradInputGelu") continue;
    EXPECT_EQ(node.attributes().at("exact").i(), 1);
  }
}

TEST(FuseLinearGradTest, NotIfAnotherNodeReadsTheGradient) {
  const std::string text = absl::StrReplaceAll(
      kTwoLayers,
      {{"y = Linear(h, v, c)", "g = Linear(h, v, c)\n r = Linear(h, v)\n y = Add(g, r)"}});
  const v1::Graph graph = After(FuseLinearGradGelu, Differentiate(ParseGraph(text)).value());

  EXPECT_THAT(NodeLines(graph), Not(Contains(HasSubstr("LinearGradInputGelu"))));
}

// ---------------------------------------------------------------- convolutions and batch norms

constexpr absl::string_view kImage = R"(
    input x f32[-1, 4, 9, 9]
    input target f32[-1, 6]
    parameter w [6, 4, 3, 3]
    parameter cb [6]
    parameter bias [6]
    parameter gain [6]
    statistic mean [6]
    statistic variance [6]
    )";

std::string Image(absl::string_view nodes) {
  return absl::StrCat(kImage, nodes, R"(
      p = GlobalAveragePool2d(y)
      loss = MeanSquaredError(p, target)
      loss loss)");
}

TEST(FuseConv2dReluTest, KeepsTheWindow) {
  const v1::Graph graph = After(FuseConv2dRelu, ParseGraph(Image(R"(
      a = Conv2d(x, w, cb) strides=[2, 1]
      y = Relu(a))")));

  EXPECT_EQ(NodeLines(graph)[0], "y = Conv2dRelu(x, w, cb)");
  EXPECT_EQ(graph.nodes(0).attributes().at("strides").integers().values(0), 2);
}

TEST(FuseConv2dReluTest, NotAcrossASum) {
  const v1::Graph graph = ParseGraph(Image(R"(
      a = Conv2d(x, w)
      c = Add(a, a)
      y = Relu(c))"));

  EXPECT_THAT(NodeLines(After(FuseConv2dRelu, graph)), ElementsAreArray(NodeLines(graph)));
}

TEST(FuseConv2dBatchNormReluTest, EvaluationIsOneNode) {
  const v1::Graph graph = After(FuseConv2dBatchNormRelu, ParseGraph(Image(R"(
      a = Conv2d(x, w) padding=[1, 1, 1, 1]
      n = BatchNormInference(a, mean, variance, bias, gain) epsilon=0.5
      y = Relu(n))")));

  EXPECT_EQ(NodeLines(graph)[0], "y = Conv2dBatchNormRelu(x, w, mean, variance, bias, gain)");
  EXPECT_EQ(graph.nodes(0).attributes().at("epsilon").f(), 0.5);
  EXPECT_EQ(graph.nodes(0).attributes().at("padding").integers().values(3), 1);
}

TEST(FuseConv2dBatchNormReluTest, NotInTrainingNorWithABiasNorWithoutRelu) {
  for (const char* nodes :
       {"n, m, r, v, s = BatchNorm(a, mean, variance, bias, gain)\n y = Relu(n)",
        "n = BatchNormInference(a, mean, variance, bias)\n y = Tanh(n)",
        "y = BatchNormInference(a, mean, variance, bias)"}) {
    const v1::Graph graph = ParseGraph(Image(absl::StrCat("a = Conv2d(x, w)\n", nodes)));
    EXPECT_THAT(NodeLines(After(FuseConv2dBatchNormRelu, graph)),
                ElementsAreArray(NodeLines(graph)));
  }
  const v1::Graph with_bias = ParseGraph(Image(R"(
      a = Conv2d(x, w, cb)
      n = BatchNormInference(a, mean, variance, bias)
      y = Relu(n))"));
  EXPECT_THAT(NodeLines(After(FuseConv2dBatchNormRelu, with_bias)),
              ElementsAreArray(NodeLines(with_bias)));
}

constexpr absl::string_view kTrainedNorm = R"(
    a = Conv2d(x, w, cb)
    n, m, r, v, s = BatchNorm(a, mean, variance, bias, gain)
    y = Relu(n))";

TEST(FuseBatchNormReluTest, ForwardAndBackwardTogether) {
  const v1::Graph graph =
      After(FuseBatchNormRelu, Differentiate(ParseGraph(Image(kTrainedNorm))).value());

  EXPECT_THAT(NodeLines(graph),
              Contains("y, m, r, v, s = BatchNormRelu(a, mean, variance, bias, gain)"));
  EXPECT_THAT(NodeLines(graph), Contains("d(a), d(bias), d(gain) = "
                                         "BatchNormReluGrad(d(y), a, m, r, s, bias, gain)"));
  EXPECT_THAT(NodeLines(graph), Contains("d(mean) = StatisticGrad(m)"));
  EXPECT_THAT(NodeLines(graph), Not(Contains(StartsWith("d(n)"))));
}

TEST(FuseBatchNormReluTest, NotBeforeASum) {
  const v1::Graph graph = Differentiate(ParseGraph(Image(R"(
      a = Conv2d(x, w, cb)
      n, m, r, v, s = BatchNorm(a, mean, variance, bias, gain)
      c = Add(n, a)
      y = Relu(c))")))
                              .value();

  EXPECT_THAT(NodeLines(After(FuseBatchNormRelu, graph)), ElementsAreArray(NodeLines(graph)));
}

TEST(FuseBatchNormReluTest, NotIfAnotherGradientFeedsTheNorm) {
  v1::Graph graph = Differentiate(ParseGraph(Image(kTrainedNorm))).value();
  for (v1::Node& node : *graph.mutable_nodes()) {
    if (node.op() == "ReluGrad") node.set_op("TanhGrad");
  }

  EXPECT_THAT(NodeLines(After(FuseBatchNormRelu, graph)), ElementsAreArray(NodeLines(graph)));
}

// Adds a node at the end that reads `tensor` and has no reader.
void AddReader(const std::string& tensor, v1::Graph& graph) {
  v1::Node& reader = *graph.add_nodes();
  reader.set_name("reader");
  reader.set_op("Tanh");
  reader.add_inputs(tensor);
  reader.add_outputs("read");
}

constexpr absl::string_view kResidualBlock = R"(
    b = Conv2d(x, w, cb)
    a = Conv2d(x, w)
    n, m, r, v, s = BatchNorm(a, mean, variance, bias, gain)
    c = Add(b, n)
    y = Relu(c))";

TEST(FuseBatchNormAddReluTest, TheEndOfAResidualBlockIsOneNodeBothWays) {
  const v1::Graph graph =
      After(FuseBatchNormAddRelu, Differentiate(ParseGraph(Image(kResidualBlock))).value());

  EXPECT_THAT(NodeLines(graph),
              Contains("y, m, r, v, s = BatchNormAddRelu(a, b, mean, variance, bias, gain)"));
  EXPECT_THAT(NodeLines(graph), Contains("d(a), d(c), d(bias), d(gain) = "
                                         "BatchNormAddReluGrad(d(y), y, a, m, r, s, bias, gain)"));
  EXPECT_THAT(NodeLines(graph), Contains("d(cb) = Conv2dGradBias(d(c))"));  // gradient of b
  EXPECT_THAT(NodeLines(graph), Not(Contains(StartsWith("d(n)"))));
}

// The result of a block goes to the next block and to its residual.
TEST(FuseBatchNormAddReluTest, TwoGradientsOfABlocksResultAreAddedInTheFusedNode) {
  const std::string block(kResidualBlock);
  const v1::Graph graph = After(
      FuseBatchNormAddRelu,
      Differentiate(
          ParseGraph(Image(absl::StrCat(absl::StrReplaceAll(block, {{"y = Relu", "z = Relu"}}),
                                        "\n t = Tanh(z)\n y = Add(z, t)"))))
          .value());

  EXPECT_THAT(
      NodeLines(graph),
      Contains(HasSubstr("= AccumulateBatchNormAddReluGrad(d(z) from t, d(y), z, a, m, r, s, "
                         "bias, gain)")));
  EXPECT_THAT(NodeLines(graph), Not(Contains(StartsWith("d(z) = "))));
}

TEST(FuseBatchNormAddReluTest, TwoGradientsStayASumIfAnotherNodeReadsIt) {
  const std::string block(kResidualBlock);
  v1::Graph graph =
      Differentiate(
          ParseGraph(Image(absl::StrCat(absl::StrReplaceAll(block, {{"y = Relu", "z = Relu"}}),
                                        "\n t = Tanh(z)\n y = Add(z, t)"))))
          .value();
  AddReader("d(z)", graph);

  EXPECT_THAT(NodeLines(After(FuseBatchNormAddRelu, graph)),
              Contains(HasSubstr("= BatchNormAddReluGrad(d(z), z, a, m, r, s, bias, gain)")));
}

TEST(FuseBatchNormAddReluTest, NotIfTheSumIsReadOrBroadcastOrHasOtherOperands) {
  for (const char* nodes :
       {"n, m, r, v, s = BatchNorm(a, mean, variance, bias)\n c = Add(n, a)\n z = Relu(c)\n"
        "y = Add(z, c)",
        "n, m, r, v, s = BatchNorm(a, mean, variance, bias)\n c = Add(n, a)\n y = Tanh(c)",
        "n, m, r, v, s = BatchNorm(a, mean, variance, bias)\n q = GlobalAveragePool2d(a)\n"
        "q4 = Reshape(q) shape=[0, 6, 1, 1]\n c = Add(n, q4)\n y = Relu(c)",
        "c = Add(a, a)\n y = Relu(c)"}) {
    const v1::Graph graph = ParseGraph(Image(absl::StrCat("a = Conv2d(x, w)\n", nodes)));
    EXPECT_THAT(NodeLines(After(FuseBatchNormAddRelu, graph)), ElementsAreArray(NodeLines(graph)));
  }
}

// ---------------------------------------------------------------- residual streams

constexpr absl::string_view kResidual = R"(
    input x f32[-1, 3, 4]
    input target f32[-1, 3, 4]
    parameter w [4, 4]
    parameter gain [4]
    parameter bias [4]
    f = Linear(x, w)
    )";

TEST(FuseAddLayerNormTest, TheSumStaysAsTheResidualStream) {
  const v1::Graph graph =
      After(FuseAddLayerNorm, Differentiate(ParseGraph(absl::StrCat(kResidual, R"(
      sum = Add(x, f)
      n, m, r = LayerNorm(sum, gain, bias) epsilon=0.5
      y = Add(sum, n)
      loss = MeanSquaredError(y, target)
      loss loss)")))
                                  .value());

  EXPECT_EQ(NodeLines(graph)[1], "n, m, r, sum = AddLayerNorm(x, f, gain, bias)");
  EXPECT_EQ(graph.nodes(1).attributes().at("epsilon").f(), 0.5);
  EXPECT_THAT(NodeLines(graph),
              Contains("d(sum) from n = LayerNormGradInput(d(y), sum, gain, m, r)"));
}

TEST(FuseAddLayerNormGradTest, TheGradientsOfANormAndItsResidualAreOneNode) {
  const v1::Graph graph =
      After(FuseAddLayerNormGrad, Differentiate(ParseGraph(absl::StrCat(kResidual, R"(
      sum = Add(x, f)
      n, m, r = LayerNorm(sum, gain, bias) epsilon=0.5
      y = Add(sum, n)
      loss = MeanSquaredError(y, target)
      loss loss)")))
                                      .value());

  EXPECT_THAT(
      NodeLines(graph),
      Contains("d(sum), d(gain), d(bias) = AddLayerNormGrad(d(y), d(y), sum, gain, m, r, bias)"));
  EXPECT_THAT(NodeLines(graph), Not(Contains(HasSubstr("LayerNormGradInput"))));
  EXPECT_THAT(NodeLines(graph), Not(Contains(HasSubstr("LayerNormGradParameters"))));
}

// The result of a norm goes to the next layer and to the residual.
TEST(FuseAddLayerNormGradTest, TwoGradientsOfANormsResultAreAddedInTheFusedNode) {
  const v1::Graph graph =
      After(FuseAddLayerNormGrad, Differentiate(ParseGraph(absl::StrCat(kResidual, R"(
      n, m, r = LayerNorm(f, gain, bias) epsilon=0.5
      t = Tanh(n)
      y = Add(n, t)
      loss = MeanSquaredError(y, target)
      loss loss)")))
                                      .value());

  EXPECT_THAT(NodeLines(graph),
              Contains("d(f), d(gain), d(bias) = "
                       "AccumulateLayerNormGrad(d(n) from t, d(y), f, gain, m, r, bias)"));
  EXPECT_THAT(NodeLines(graph), Not(Contains(HasSubstr("Accumulate("))));
}

TEST(FuseAddLayerNormGradTest, TwoGradientsStayASumIfAnotherNodeReadsIt) {
  v1::Graph graph = Differentiate(ParseGraph(absl::StrCat(kResidual, R"(
      n, m, r = LayerNorm(f, gain, bias)
      t = Tanh(n)
      y = Add(n, t)
      loss = MeanSquaredError(y, target)
      loss loss)")))
                        .value();
  AddReader("d(n)", graph);

  EXPECT_THAT(NodeLines(After(FuseAddLayerNormGrad, graph)), ElementsAreArray(NodeLines(graph)));
}

TEST(FuseAddLayerNormGradTest, NotIfThereIsNoAddendOrMoreThanOne) {
  for (const absl::string_view rest :
       {"y = Linear(n, w)", "z = Add(sum, n)\n q = Mul(sum, z)\n y = Add(q, q)"}) {
    const v1::Graph graph = Differentiate(ParseGraph(absl::StrCat(kResidual, R"(
      sum = Add(x, f)
      n, m, r = LayerNorm(sum, gain, bias)
      )",
                                                                  rest, R"(
      loss = MeanSquaredError(y, target)
      loss loss)")))
                                .value();
    EXPECT_THAT(NodeLines(After(FuseAddLayerNormGrad, graph)), ElementsAreArray(NodeLines(graph)));
  }
}

TEST(FuseAddLayerNormTest, NotIfAnAddendIsBroadcast) {
  const v1::Graph graph = ParseGraph(absl::StrCat(kResidual, R"(
      sum = Add(f, bias)
      y, m, r = LayerNorm(sum, gain)
      loss = MeanSquaredError(y, target)
      loss loss)"));

  EXPECT_THAT(NodeLines(After(FuseAddLayerNorm, graph)), ElementsAreArray(NodeLines(graph)));
}

// ---------------------------------------------------------------- attention

// Attention as PyTorch exports it: heads of 3 channels split from 12, `scores` made by `scoring`
// from "products", probabilities from "scores".
std::string WrittenOut(absl::string_view scoring, absl::string_view rest = "") {
  return absl::StrCat(R"(
      input x f32[-1, 5, 12]
      input z f32[-1, 7, 12]
      input target f32[-1, 5, 12]
      input mask f32[-1, 1, 1, 7]
      input wide f32[-1, 7]
      parameter wq [12, 12]
      parameter wk [12, 12]
      parameter wv [12, 12]
      scale = Constant() shape=[] value=0.25
      q = Linear(x, wq)
      q4 = Reshape(q) shape=[0, 0, 4, 3]
      qh = Transpose(q4) permutation=[0, 2, 1, 3]
      k = Linear(z, wk)
      k4 = Reshape(k) shape=[0, 0, 4, 3]
      kh = Transpose(k4) permutation=[0, 2, 3, 1]
      v = Linear(z, wv)
      v4 = Reshape(v) shape=[0, 0, 4, 3]
      vh = Transpose(v4) permutation=[0, 2, 1, 3]
      )",
                      scoring, R"(
      probabilities = Softmax(scores)
      context = MatMul(probabilities, vh)
      side_by_side = Transpose(context) permutation=[0, 2, 1, 3]
      y = Reshape(side_by_side) shape=[0, 0, 12]
      loss = MeanSquaredError(y, target)
      loss loss
      )",
                      rest);
}

TEST(FuseAttentionTest, SoftmaxOfScaledProductsIsOneNode) {
  const v1::Graph graph = After(FuseAttention, ParseGraph(WrittenOut(R"(
      products = MatMul(qh, kh)
      scores = Mul(products, scale))")));

  EXPECT_THAT(NodeLines(graph),
              ElementsAre("scale = Constant()", "q = Linear(x, wq)", "k = Linear(z, wk)",
                          "v = Linear(z, wv)", "y, probabilities = Attention(q, k, v)",
                          "loss = MeanSquaredError(y, target)"));
  EXPECT_EQ(graph.nodes(4).attributes().at("heads").i(), 4);
  EXPECT_EQ(graph.nodes(4).attributes().at("scale").f(), 0.25);
  EXPECT_TRUE(Differentiate(graph).ok());
}

TEST(FuseAttentionTest, ScalesOfQueriesAndKeysMultiplyAndAMaskIsAnInput) {
  const v1::Graph graph = After(FuseAttention, ParseGraph(WrittenOut(R"(
      qs = Div(qh, scale)
      ks = Mul(scale, kh)
      products = MatMul(qs, ks)
      scores = Add(products, mask))")));

  EXPECT_THAT(NodeLines(graph), Contains("y, probabilities = Attention(q, k, v, mask)"));
  EXPECT_EQ(graph.nodes(4).attributes().at("scale").f(), 1);
}

TEST(FuseAttentionTest, NotIfAllSamplesShareQueriesOrKeysAndValues) {
  const std::string all = WrittenOut("scores = MatMul(qh, kh)");
  for (const std::string& text :
       {absl::StrReplaceAll(all, {{"input x f32[-1, 5, 12]", "parameter x [1, 5, 12]"}}),
        absl::StrReplaceAll(all, {{"input z f32[-1, 7, 12]", "parameter z [1, 7, 12]"}})}) {
    const v1::Graph graph = ParseGraph(text);
    EXPECT_THAT(NodeLines(After(FuseAttention, graph)), ElementsAreArray(NodeLines(graph)));
  }
}

TEST(FuseAttentionTest, NotIfProbabilitiesAreReadOrTheMaskHasAnotherShape) {
  for (const std::string& text :
       {WrittenOut("scores = MatMul(qh, kh)", "logits probabilities"),
        WrittenOut("products = MatMul(qh, kh)\n row = ReduceSum(wide) axes=[0]\n"
                   "scores = Add(products, row)"),
        WrittenOut("scores = MatMul(qh, kh)", "again = Relu(kh)")}) {
    const v1::Graph graph = ParseGraph(text);
    EXPECT_THAT(NodeLines(After(FuseAttention, graph)), ElementsAreArray(NodeLines(graph)));
  }
}

}  // namespace
}  // namespace muster::fusion_test
