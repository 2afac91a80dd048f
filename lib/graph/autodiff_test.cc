#include "lib/graph/autodiff.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/graph/graph_text.h"
#include "lib/graph/operator.h"
#include "lib/graph/shape_inference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::autodiff_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsSupersetOf;

// Returns the nodes that Differentiate has added. Checks that types can be inferred for several
// batches, and that gradients have the types of their parameters.
std::vector<std::string> Backward(const v1::Graph& forward) {
  const absl::StatusOr<v1::Graph> graph = Differentiate(forward);
  EXPECT_TRUE(graph.ok()) << graph.status();
  if (!graph.ok()) return {};
  for (int batch : {1, 2, 7}) {
    EXPECT_TRUE(InferTypes(*graph, batch).ok()) << InferTypes(*graph, batch).status();
  }
  return NodeLines(*graph, forward.nodes_size());
}

std::vector<std::string> Backward(absl::string_view text) { return Backward(ParseGraph(text)); }

constexpr absl::string_view kMlp = R"(
    input x f32[-1, 5]
    input target i32[-1]
    parameter layers.0.weight [6, 5]
    parameter layers.0.bias [6]
    parameter layers.1.weight [3, 6]
    parameter layers.1.bias [3]
    layers.0 = Linear(x, layers.0.weight, layers.0.bias)
    relu = Relu(layers.0)
    logits = Linear(relu, layers.1.weight, layers.1.bias)
    loss, lse = SoftmaxCrossEntropy(logits, target) label_smoothing=0.25 ignore_index=-1
    correct = CorrectCount(logits, target)
    loss loss
    correct correct)";

TEST(DifferentiateTest, AnMlpComputesParameterGradientsFirstAndNoneOfItsInput) {
  const v1::Graph forward = ParseGraph(kMlp);

  EXPECT_THAT(Backward(forward),
              ElementsAre("d(logits) = SoftmaxCrossEntropyGrad(logits, target, lse)",
                          "d(layers.1.bias) = LinearGradBias(d(logits))",
                          "d(layers.1.weight) = LinearGradWeight(d(logits), relu)",
                          "d(relu) = LinearGradInput(d(logits), layers.1.weight)",
                          "d(layers.0) = ReluGrad(d(relu), relu)",
                          "d(layers.0.bias) = LinearGradBias(d(layers.0))",
                          "d(layers.0.weight) = LinearGradWeight(d(layers.0), x)"));
  EXPECT_THAT(Differentiate(forward)->gradients(),
              ElementsAre("d(layers.0.weight)", "d(layers.0.bias)", "d(layers.1.weight)",
                          "d(layers.1.bias)"));
}

// A rank of a split MLP. The sum's gradient is every term's, and only the input of a split layer
// needs the gradients of the other ranks.
TEST(DifferentiateTest, CollectivesOfASplitGraphMeetOnceInEachDirection) {
  EXPECT_THAT(Backward(R"(
                  input x f32[-1, 5]
                  input target f32[-1, 5]
                  parameter first [5, 5]
                  parameter expand [2, 5]
                  parameter contract [5, 2]
                  h = Linear(x, first)
                  h.all = GradientAllReduce(h)
                  expanded = Linear(h.all, expand)
                  part = Linear(expanded, contract)
                  y = AllReduce(part)
                  loss = MeanSquaredError(y, target)
                  loss loss)"),
              ElementsAre("d(y) = MeanSquaredErrorGrad(y, target)",
                          "d(contract) = LinearGradWeight(d(y), expanded)",
                          "d(expanded) = LinearGradInput(d(y), contract)",
                          "d(expand) = LinearGradWeight(d(expanded), h.all)",
                          "d(h.all) = LinearGradInput(d(expanded), expand)",
                          "d(h) = AllReduce(d(h.all))", "d(first) = LinearGradWeight(d(h), x)"));
}

TEST(DifferentiateTest, TheForwardGraphDoesNotChange) {
  const v1::Graph forward = ParseGraph(kMlp);

  v1::Graph graph = Differentiate(forward).value();

  graph.mutable_nodes()->DeleteSubrange(forward.nodes_size(),
                                        graph.nodes_size() - forward.nodes_size());
  graph.clear_gradients();
  EXPECT_EQ(graph.DebugString(), forward.DebugString());
}

TEST(DifferentiateTest, BackwardNodesHaveTheAttributesOfTheirForwardNode) {
  const v1::Graph forward = ParseGraph(kMlp);

  const v1::Graph graph = Differentiate(forward).value();

  const v1::Node& loss = graph.nodes(forward.nodes_size());
  EXPECT_EQ(loss.attributes().at("label_smoothing").f(), 0.25);
  EXPECT_EQ(loss.attributes().at("ignore_index").i(), -1);
}

// A graph with a loss around nodes that make y, f32[batch, 4], from x and the parameters.
std::string Regression(absl::string_view parameters_and_nodes) {
  return absl::StrCat(R"(
      input x f32[-1, 4]
      input ids i32[-1, 3]
      input target f32[-1, 4]
      )",
                      parameters_and_nodes, R"(
      loss = MeanSquaredError(y, target)
      loss loss)");
}

constexpr absl::string_view kLossGradient = "d(y) = MeanSquaredErrorGrad(y, target)";

TEST(DifferentiateTest, AResidualSumsItsBranchesInForwardOrderAndPassesItsGradientOn) {
  EXPECT_THAT(
      Backward(Regression(R"(
                  parameter v [4, 4]
                  parameter w [4, 4]
                  a = Linear(x, v)
                  f = Linear(a, w)
                  y = Add(a, f))")),
      ElementsAre(kLossGradient, "d(w) = LinearGradWeight(d(y), a)",
                  "d(a) from f = LinearGradInput(d(y), w)", "d(a) = Accumulate(d(a) from f, d(y))",
                  "d(v) = LinearGradWeight(d(a), x)"));
}

TEST(DifferentiateTest, ATensorUsedTwiceByOneNodeCountsTwice) {
  EXPECT_THAT(
      Backward(Regression(R"(
                  parameter b [4]
                  a = Add(x, b)
                  y = Mul(a, a))")),
      ElementsAre(kLossGradient, "d(a) from y = MulGrad(d(y), a, a)",
                  "d(a) from y' = MulGrad(d(y), a, a)",
                  "d(a) = Accumulate(d(a) from y, d(a) from y')", "d(b) = AddGrad(d(a), b)"));
}

TEST(DifferentiateTest, TheGradientOfAnAddendOfOneRowIsSummedForAnyBatch) {
  EXPECT_THAT(Backward(Regression(R"(
                  parameter row [1, 4]
                  a = Neg(row)
                  y = Sub(x, a))")),
              ElementsAre(kLossGradient, "d(a) = SubGradB(d(y), a)", "d(row) = NegGrad(d(a))"));
}

TEST(DifferentiateTest, GradientsOfParametersAreSeparateTensors) {
  EXPECT_THAT(Backward(Regression(R"(
                  parameter a [4]
                  parameter b [4]
                  c = Add(a, b)
                  y = Add(x, c))")),
              ElementsAre(kLossGradient, "d(c) = AddGrad(d(y), c)", "d(a) = AddGrad(d(c), a)",
                          "d(b) = AddGrad(d(c), b)"));
}

TEST(DifferentiateTest, ConcatAndSplitDifferentiateEveryPart) {
  EXPECT_THAT(
      Backward(Regression(R"(
                  parameter w [6, 4]
                  a = Linear(x, w)
                  p, q, r = Split(a) axis=1 sizes=[1, 2, 3]
                  y = Concat(p, r) axis=1)")),
      ElementsAre(kLossGradient, "d(p), d(r) = ConcatGrad(d(y), p, r)", "d(q) = Constant(q)",
                  "d(a) = SplitGrad(d(p), d(q), d(r))", "d(w) = LinearGradWeight(d(a), x)"));
}

TEST(DifferentiateTest, ZerosReplaceTheGradientOfAnUnusedOutput) {
  EXPECT_THAT(Backward(R"(
                  input x f32[-1, 7, 5]
                  input target f32[-1, 7, 6]
                  parameter w [2, 12, 5]
                  parameter r [2, 12, 3]
                  parameter bias [2, 24]
                  y, h, c, state = Lstm(x, w, r, bias)
                  loss = MeanSquaredError(y, target)
                  loss loss)"),
              ElementsAre("d(y) = MeanSquaredErrorGrad(y, target)", "d(h) = Constant(h)",
                          "d(c) = Constant(c)",
                          "d(x), d(w), d(r), d(bias) = "
                          "LstmGrad(d(y), d(h), d(c), x, w, r, bias, y, state)"));
}

TEST(DifferentiateTest, GradientsFlowThroughLaterOutputsAndIntoOptionalInputs) {
  EXPECT_THAT(Backward(R"(
                  input x f32[-1, 7, 5]
                  input start f32[-1, 3]
                  input target f32[-1, 3]
                  parameter w [1, 9, 5]
                  parameter r [1, 9, 3]
                  parameter bias [1, 18]
                  parameter shift [3]
                  shifted = Add(start, shift)
                  h0 = Unsqueeze(shifted) axes=[0]
                  y, h, state = Gru(x, w, r, bias, h0)
                  last = Squeeze(h) axes=[0]
                  loss = MeanSquaredError(last, target)
                  loss loss)"),
              ElementsAre("d(last) = MeanSquaredErrorGrad(last, target)",
                          "d(h) = ReshapeGrad(d(last), h)", "d(y) = Constant(y)",
                          "d(x), d(w), d(r), d(bias), d(h0) = "
                          "GruGrad(d(y), d(h), x, w, r, bias, y, state, h0)",
                          "d(shifted) = ReshapeGrad(d(h0), shifted)",
                          "d(shift) = AddGrad(d(shifted), shift)"));
}

TEST(DifferentiateTest, ATransposedConvolutionUsesTheGradientsOfAConvolution) {
  EXPECT_THAT(Backward(R"(
                  input x f32[-1, 4, 3, 3]
                  input target f32[-1, 2, 6, 6]
                  parameter shift [4, 1, 1]
                  parameter w [4, 2, 2, 2]
                  parameter bias [2]
                  a = Add(x, shift)
                  y = ConvTranspose2d(a, w, bias) strides=[2, 2]
                  loss = MeanSquaredError(y, target)
                  loss loss)"),
              ElementsAre("d(y) = MeanSquaredErrorGrad(y, target)",
                          "d(bias) = Conv2dGradBias(d(y))", "d(w) = Conv2dGradWeight(a, d(y), w)",
                          "d(a) = Conv2d(d(y), w)", "d(shift) = AddGrad(d(a), shift)"));
}

TEST(DifferentiateTest, NormsDifferentiateByTheParametersTheyHave) {
  EXPECT_THAT(
      Backward(Regression(R"(
                  parameter gain [4]
                  parameter bias [4]
                  statistic mean [4]
                  statistic variance [4]
                  a, am, ar = LayerNorm(x, gain)
                  y, ym, yr, yv, state = BatchNorm(a, mean, variance, bias))")),
      ElementsAre(kLossGradient, "d(mean) = StatisticGrad(ym)", "d(variance) = StatisticGrad(yv)",
                  "d(a), d(bias) = BatchNormGrad(d(y), a, ym, yr, state, bias)",
                  "d(gain) = LayerNormGradParameters(d(a), x, am, ar, gain)"));
}

TEST(DifferentiateTest, AStatisticReceivesTheStatisticOfThisRun) {
  const v1::Graph graph = Differentiate(ParseGraph(Regression(R"(
                              statistic variance [4]
                              parameter gain [4]
                              parameter bias [4]
                              statistic mean [4]
                              y, m, r, v, state = BatchNorm(x, mean, variance, bias, gain))")))
                              .value();

  EXPECT_THAT(graph.gradients(), ElementsAre("d(variance)", "d(gain)", "d(bias)", "d(mean)"));
  EXPECT_THAT(NodeLines(graph), IsSupersetOf({std::string("d(variance) = StatisticGrad(v)"),
                                              std::string("d(mean) = StatisticGrad(m)")}));
}

TEST(DifferentiateTest, SeveralLossesAddUpThroughTotalLoss) {
  EXPECT_THAT(Backward(R"(
                  input x f32[-1, 4]
                  input class i32[-1]
                  input target f32[-1, 4]
                  parameter w [4, 4]
                  y = Linear(x, w)
                  squares = MeanSquaredError(y, target) weight=0.5
                  entropy, lse = SoftmaxCrossEntropy(y, class)
                  loss = TotalLoss(squares, entropy)
                  loss loss)"),
              ElementsAre("d(y) from entropy = SoftmaxCrossEntropyGrad(y, class, lse)",
                          "d(y) from squares = MeanSquaredErrorGrad(y, target)",
                          "d(y) = Accumulate(d(y) from squares, d(y) from entropy)",
                          "d(w) = LinearGradWeight(d(y), x)"));
}

TEST(DifferentiateTest, NoGradientGoesIntoIntegersOrMasks) {
  EXPECT_THAT(
      Backward(R"(
                  input ids i32[-1, 3]
                  input mask f32[-1, 1, 1, 3]
                  input target f32[-1, 3, 4]
                  parameter table [9, 12]
                  condition = Unsqueeze(ids) axes=[2]
                  qkv = Embedding(ids, table)
                  a, lse = SelfAttention(qkv, mask) heads=2
                  b = Gather(a, ids) axis=1
                  mean = ReduceMean(b) axes=[1, 2] keep=0
                  c = Reshape(mean) shape=[0, 1, -1]
                  y = Where(condition, a, c)
                  loss = MeanSquaredError(y, target)
                  loss loss)"),
      ElementsAre("d(y) = MeanSquaredErrorGrad(y, target)",
                  "d(a) from y = WhereGradA(d(y), condition, a)",
                  "d(c) = WhereGradB(d(y), condition, c)", "d(mean) = ReshapeGrad(d(c), mean)",
                  "d(b) = ReduceMeanGrad(d(mean), b)", "d(a) from b = GatherGrad(d(b), a, ids)",
                  "d(a) = Accumulate(d(a) from b, d(a) from y)",
                  "d(qkv) = SelfAttentionGrad(d(a), qkv, a, lse, mask)",
                  "d(table) = EmbeddingGrad(d(qkv), ids, table)"));
}

TEST(DifferentiateTest, NoGradientFlowsThroughAStepFunction) {
  EXPECT_THAT(
      Backward(R"(
                input x f32[-1, 4]
                input target f32[-1, 4]
                parameter w [4]
                product = Mul(x, w)
                floor = Floor(product)
                wave = Cos(floor)
                rest = Sub(product, wave)
                loss = MeanSquaredError(rest, target)
                loss loss)"),
      ElementsAre("d(rest) = MeanSquaredErrorGrad(rest, target)", "d(w) = MulGrad(d(rest), w, x)"));
}

// A token is put before each sample. Only the batch size of the sample is read.
TEST(DifferentiateTest, ShapesHaveNoGradient) {
  EXPECT_THAT(Backward(R"(
                input x f32[-1, 4]
                input target f32[-1, 2, 4]
                parameter w [4, 4]
                parameter token [1, 1, 4]
                y = Linear(x, w)
                row = Unsqueeze(y) axes=[1]
                tokens = Expand(token, y) shape=[-1, 0, 0]
                rows = Concat(tokens, row) axis=1
                loss = MeanSquaredError(rows, target)
                loss loss)"),
              ElementsAre("d(rows) = MeanSquaredErrorGrad(rows, target)",
                          "d(tokens), d(row) = ConcatGrad(d(rows), tokens, row)",
                          "d(token) = ExpandGrad(d(tokens), token)",
                          "d(y) = ReshapeGrad(d(row), y)", "d(w) = LinearGradWeight(d(y), x)"));
}

// Constant weights resize images, or blur them with an untrained kernel.
TEST(DifferentiateTest, ConstantWeightsHaveNoGradient) {
  EXPECT_THAT(
      Backward(R"(
                  input x f32[-1, 1, 4, 4]
                  input target f32[-1, 2, 5, 3]
                  parameter shift [1, 4, 4]
                  kernel = Constant() shape=[2, 1, 2, 2] value=0.25
                  rows = Constant() shape=[5, 3] value=0.5
                  a = Add(x, shift)
                  b = Conv2d(a, kernel)
                  y = MatMul(rows, b)
                  loss = MeanSquaredError(y, target)
                  loss loss)"),
      ElementsAre("d(y) = MeanSquaredErrorGrad(y, target)", "d(b) = MatMulGradB(d(y), rows, b)",
                  "d(a) = Conv2dGradInput(d(b), kernel, a)", "d(shift) = AddGrad(d(a), shift)"));
}

TEST(DifferentiateTest, ATiedTableSumsEmbeddingAndHeadAtTheEnd) {
  const std::vector<std::string> backward = Backward(R"(
      input ids i32[-1, 3]
      input target i32[-1, 3]
      parameter table [9, 12]
      x = Embedding(ids, table)
      logits = Linear(x, table)
      loss, lse = SoftmaxCrossEntropy(logits, target)
      loss loss)");

  EXPECT_EQ(backward.back(), "d(table) = Accumulate(d(table) from x, d(table) from logits)");
}

TEST(DifferentiateTest, NamesInUseAreAvoided) {
  v1::Graph forward = ParseGraph(Regression(R"(
      parameter w [4, 4]
      y = Linear(x, w))"));
  forward.mutable_inputs(1)->set_name("d(w)");
  forward.mutable_nodes(1)->set_name("y/LinearGradWeight");

  const v1::Graph graph = Differentiate(forward).value();

  EXPECT_TRUE(InferTypes(graph, 3).ok()) << InferTypes(graph, 3).status();
  EXPECT_EQ(graph.gradients(0), "d(w)'");
}

TEST(DifferentiateTest, RefusesGraphsWithoutAGradient) {
  constexpr absl::string_view kTensors = R"(
      input input f32[-1, 4]
      input target f32[-1, 4]
      input label i32[-1]
      parameter w [4, 4]
      y = Linear(input, w)
  )";
  const struct {
    const char* rest;
    const char* message;
  } faults[] = {
      {"", "the graph names no loss"},
      {"loss nowhere", "loss 'nowhere' is not defined"},
      {R"(parameter unused [3]
          parameter idle [3]
          statistic s [4]
          l = MeanSquaredError(y, target)
          loss l)",
       "parameters 'unused', 'idle' do not reach the loss 'l'"},
      {R"(l = MeanSquaredError(input, target)
          loss l)",
       "parameter 'w' does not reach the loss 'l'"},
      {R"(i = Cast(y) to=i32
          f = Cast(i) to=f32
          l = MeanSquaredError(f, target)
          loss l)",
       "parameter 'w' does not reach the loss 'l'"},
      {R"(f = Floor(y)
          l = MeanSquaredError(f, target)
          loss l)",
       "parameter 'w' does not reach the loss 'l'"},
      {R"(statistic s [4]
          t = Add(y, s)
          l = MeanSquaredError(t, target)
          loss l)",
       "parameter 's' does not feed a BatchNorm, as a statistic must"},
      {R"(statistic s [4]
          a, am, ar, av, as = BatchNorm(y, s, s, s)
          l = MeanSquaredError(a, target)
          loss l)",
       "statistic 's' feeds more than one BatchNorm"},
      {R"(parameter p [4]
          statistic s [4]
          a, am, ar, av, as = BatchNorm(y, p, s, p)
          l = MeanSquaredError(a, target)
          loss l)",
       "node 'a' (BatchNorm) has no derivative with respect to 'p'"},
      {R"(l = MeanSquaredError(input, y)
          loss l)",
       "node 'l' (MeanSquaredError) has no derivative with respect to 'y'"},
      {R"(c = CorrectCount(y, label)
          loss c)",
       "node 'c' (CorrectCount) is no loss function but makes the loss 'c'"},
      {R"(l = MeanSquaredError(y, target)
          sum = Add(l, l)
          loss sum)",
       "node 'sum' (Add) is no loss function but makes the loss 'sum'"},
      {R"(l = MeanSquaredError(y, target)
          sum = TotalLoss(l, l)
          loss sum)",
       "loss 'l' counts twice"},
      {R"(l = MeanSquaredError(y, target)
          e = Exp(l)
          sum = TotalLoss(l, e)
          loss sum)",
       "node 'e' (Exp) is no loss function but makes the loss 'e'"},
      {R"(l = MeanSquaredError(y, target)
          m = MeanSquaredError(l, l)
          loss m)",
       "node 'm' (MeanSquaredError) has no derivative with respect to 'l'"},
      {R"(s, lse = SoftmaxCrossEntropy(y, label)
          l = SigmoidCrossEntropy(lse, label_f)
          loss l)",
       "node 'l' (SigmoidCrossEntropy): input 'label_f' is not defined"},
      {R"(s, lse = SoftmaxCrossEntropy(y, label)
          z = Neg(lse)
          one = Cast(label) to=f32
          l = SigmoidCrossEntropy(z, one)
          loss l)",
       "node 's' (SoftmaxCrossEntropy) has no derivative: only the graph's loss may be 'lse'"},
      {R"(n, m, r = LayerNorm(y, g)
          parameter g [4]
          k = Unsqueeze(m) axes=[1]
          z = Add(y, k)
          l = MeanSquaredError(z, target)
          loss l)",
       "node 'n' (LayerNorm) has no derivative through its output 'm'"},
      {R"(a = Accumulate(target, y)
          l = MeanSquaredError(a, target)
          loss l)",
       "node 'a' (Accumulate) has no derivative with respect to 'y'"},
  };
  for (const auto& fault : faults) {
    const absl::Status status =
        Differentiate(ParseGraph(absl::StrCat(kTensors, fault.rest))).status();

    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()), fault.message);
  }
}

TEST(DifferentiateTest, RefusesADifferentiatedGraphAndOneWithoutParameters) {
  v1::Graph graph = ParseGraph(kMlp);
  graph = Differentiate(graph).value();
  EXPECT_EQ(std::string(Differentiate(graph).status().message()),
            "the graph is differentiated already");

  EXPECT_EQ(std::string(Differentiate(ParseGraph(R"(
                            input x f32[-1, 4]
                            l = MeanSquaredError(x, x)
                            loss l)"))
                            .status()
                            .message()),
            "the graph has no parameters");
}

// The operands that a rule names must be in the signatures of both ops, in the right number.
TEST(OperatorTableTest, EveryGradientRuleFitsTheOperatorItNames) {
  const auto has = [](const std::vector<Operand>& operands, absl::string_view name) {
    return std::ranges::count(operands, name, &Operand::name) == 1;
  };
  for (const Operator& op : Operators()) {
    for (const GradientRule& rule : op.gradients) {
      const Operator* gradient = FindOperator(rule.op);
      ASSERT_NE(gradient, nullptr) << rule.op;
      ASSERT_LE(rule.inputs.size(), gradient->inputs.size()) << rule.op;
      for (size_t i = rule.inputs.size(); i < gradient->inputs.size(); ++i) {
        EXPECT_EQ(gradient->inputs[i].arity, Operand::Arity::kOptional) << rule.op;
      }
      ASSERT_EQ(rule.of.size(), gradient->outputs.size()) << rule.op;
      for (absl::string_view input : rule.inputs) {
        EXPECT_TRUE(input == "dy" || has(op.inputs, input) || has(op.outputs, input) ||
                    has(op.outputs, input.substr(1)))
            << op.name << " " << input;
      }
      for (size_t i = 0; i < rule.of.size(); ++i) {
        EXPECT_TRUE(has(op.inputs, rule.of[i])) << op.name << " " << rule.of[i];
      }
    }
  }
}

TEST(OperatorTableTest, AGradientOpTakesTheAttributesOfItsForwardOp) {
  for (const Operator& op : Operators()) {
    for (const GradientRule& rule : op.gradients) {
      for (const AttributeRule& attribute : FindOperator(rule.op)->attributes) {
        EXPECT_EQ(std::ranges::count(op.attributes, attribute.name, &AttributeRule::name), 1)
            << rule.op << " " << attribute.name;
      }
    }
  }
}

}  // namespace
}  // namespace muster::autodiff_test
