#include "lib/graph/autodiff.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "lib/graph/operator.h"
#include "lib/graph/shape_inference.h"
#include "lib/graph/zoo.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::Gt;

v1::Graph Parse(const std::string& text) {
  v1::Graph graph;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &graph)) << text;
  return graph;
}

v1::Graph Model(const std::string& name, const std::string& args = "") {
  v1::ModelSpec spec;
  spec.mutable_zoo()->set_name(name);
  EXPECT_TRUE(
      google::protobuf::TextFormat::ParseFromString(args, spec.mutable_zoo()->mutable_args()));
  return BuildModel(spec).value();
}

// "outputs = op(inputs)" of the nodes that Differentiate has added.
std::vector<std::string> Backward(const v1::Graph& forward, const v1::Graph& graph) {
  std::vector<std::string> lines;
  for (int i = forward.nodes_size(); i < graph.nodes_size(); ++i) {
    const v1::Node& node = graph.nodes(i);
    lines.push_back(absl::StrCat(absl::StrJoin(node.outputs(), ", "), " = ", node.op(), "(",
                                 absl::StrJoin(node.inputs(), ", "), ")"));
  }
  return lines;
}

TEST(DifferentiateTest, AnMlpTakesParameterGradientsFirstAndNoneOfItsInput) {
  const v1::Graph forward = Model("mlp", R"(fields { key: "hidden" value { number_value: 5 } })");

  const v1::Graph graph = Differentiate(forward).value();

  EXPECT_THAT(Backward(forward, graph),
              ElementsAre("d(logits) = SoftmaxCrossEntropyGrad(probabilities, target)",
                          "d(layers.1.bias) = LinearGradBias(d(logits))",
                          "d(layers.1.weight) = LinearGradWeight(d(logits), layers.0.relu)",
                          "d(layers.0.relu) = LinearGradInput(d(logits), layers.1.weight)",
                          "d(layers.0) = ReluGrad(d(layers.0.relu), layers.0.relu)",
                          "d(layers.0.bias) = LinearGradBias(d(layers.0))",
                          "d(layers.0.weight) = LinearGradWeight(d(layers.0), input)"));
  EXPECT_THAT(graph.gradients(), ElementsAre("d(layers.0.weight)", "d(layers.0.bias)",
                                             "d(layers.1.weight)", "d(layers.1.bias)"));
}

TEST(DifferentiateTest, TheForwardGraphStaysAsItWas) {
  const v1::Graph forward = Model("lenet");

  v1::Graph graph = Differentiate(forward).value();

  ASSERT_THAT(graph.nodes_size(), Gt(forward.nodes_size()));
  graph.mutable_nodes()->DeleteSubrange(forward.nodes_size(),
                                        graph.nodes_size() - forward.nodes_size());
  graph.clear_gradients();
  EXPECT_EQ(graph.DebugString(), forward.DebugString());
}

TEST(DifferentiateTest, BackwardNodesInheritTheAttributesTheyNeed) {
  const v1::Graph graph = Differentiate(Model("lenet")).value();

  for (const v1::Node& node : graph.nodes()) {
    if (node.op() == "MaxPool2dGrad") {
      EXPECT_EQ(node.attributes().at("kernel").i(), 2);
    }
    if (node.name() == "conv1/Conv2dGradWeight") {
      EXPECT_EQ(node.attributes().at("padding").i(), 2);
    }
    if (node.op() == "Conv2dGradBias") {
      EXPECT_TRUE(node.attributes().empty());
    }
  }
}

TEST(DifferentiateTest, AResidualSumsItsBranchesInForwardOrderAndPassesItsGradientOn) {
  const v1::Graph forward = Parse(R"(
      inputs { name: "input" dtype: DTYPE_F32 shape: [-1, 4] }
      inputs { name: "target" dtype: DTYPE_F32 shape: [-1, 4] }
      parameters { name: "v" shape: [4, 4] } parameters { name: "w" shape: [4, 4] }
      nodes { name: "x" op: "Linear" inputs: ["input", "v"] outputs: "x" }
      nodes { name: "f" op: "Linear" inputs: ["x", "w"] outputs: "f" }
      nodes { name: "y" op: "Add" inputs: ["x", "f"] outputs: "y" }
      nodes { name: "loss" op: "MeanSquaredError" inputs: ["y", "target"] outputs: "loss" }
      loss: "loss")");

  const v1::Graph graph = Differentiate(forward).value();

  EXPECT_THAT(
      Backward(forward, graph),
      ElementsAre("d(y) = MeanSquaredErrorGrad(y, target)", "d(w) = LinearGradWeight(d(y), x)",
                  "d(x) from f = LinearGradInput(d(y), w)", "d(x) = Accumulate(d(x) from f, d(y))",
                  "d(v) = LinearGradWeight(d(x), input)"));
}

TEST(DifferentiateTest, ATensorUsedTwiceByOneNodeCountsTwice) {
  const v1::Graph forward = Parse(R"(
      inputs { name: "target" dtype: DTYPE_F32 shape: [-1, 4] }
      inputs { name: "input" dtype: DTYPE_F32 shape: [-1, 4] }
      parameters { name: "b" shape: 4 }
      nodes { name: "x" op: "Add" inputs: ["input", "b"] outputs: "x" }
      nodes { name: "y" op: "Add" inputs: ["x", "x"] outputs: "y" }
      nodes { name: "loss" op: "MeanSquaredError" inputs: ["y", "target"] outputs: "loss" }
      loss: "loss")");

  EXPECT_THAT(Backward(forward, Differentiate(forward).value()),
              ElementsAre("d(y) = MeanSquaredErrorGrad(y, target)", "d(x) = Accumulate(d(y), d(y))",
                          "d(b) = AddGrad(d(x), b)"));
}

TEST(DifferentiateTest, GradientsOfParametersAreTensorsOfTheirOwn) {
  const v1::Graph forward = Parse(R"(
      inputs { name: "input" dtype: DTYPE_F32 shape: [-1, 4] }
      inputs { name: "target" dtype: DTYPE_F32 shape: [-1, 4] }
      parameters { name: "a" shape: 4 } parameters { name: "b" shape: 4 }
      nodes { name: "c" op: "Add" inputs: ["a", "b"] outputs: "c" }
      nodes { name: "y" op: "Add" inputs: ["input", "c"] outputs: "y" }
      nodes { name: "loss" op: "MeanSquaredError" inputs: ["y", "target"] outputs: "loss" }
      loss: "loss")");

  EXPECT_THAT(Backward(forward, Differentiate(forward).value()),
              ElementsAre("d(y) = MeanSquaredErrorGrad(y, target)", "d(c) = AddGrad(d(y), c)",
                          "d(a) = AddGrad(d(c), a)", "d(b) = AddGrad(d(c), b)"));
}

TEST(DifferentiateTest, ATiedTableSumsEmbeddingAndHead) {
  const v1::Graph graph =
      Differentiate(Model("gpt", R"(fields { key: "tied" value { bool_value: true } })")).value();

  const v1::Node& last = *graph.nodes().rbegin();
  EXPECT_EQ(last.op(), "Accumulate");
  EXPECT_THAT(last.inputs(), ElementsAre("d(token_embedding.weight) from token_embedding",
                                         "d(token_embedding.weight) from logits"));
  EXPECT_EQ(graph.gradients(0), last.outputs(0));
}

TEST(DifferentiateTest, NothingInTheBackwardPassIsDead) {
  for (const char* name : {"linear", "mlp", "lenet", "gpt"}) {
    const v1::Graph forward = Model(name);
    const v1::Graph graph = Differentiate(forward).value();
    absl::flat_hash_set<std::string> used(graph.gradients().begin(), graph.gradients().end());
    for (const v1::Node& node : graph.nodes())
      used.insert(node.inputs().begin(), node.inputs().end());

    for (int i = forward.nodes_size(); i < graph.nodes_size(); ++i) {
      for (const std::string& output : graph.nodes(i).outputs())
        EXPECT_TRUE(used.contains(output)) << output;
    }
  }
}

TEST(DifferentiateTest, GradientsOfLaterLayersAreFinalEarlier) {
  const v1::Graph graph = Differentiate(Model("gpt")).value();
  absl::flat_hash_map<std::string, int> position;
  for (int i = 0; i < graph.nodes_size(); ++i) {
    for (const std::string& output : graph.nodes(i).outputs()) position[output] = i;
  }

  // Parameters come in order of first use; weight and bias of one layer may swap.
  for (int p = 2; p < graph.parameters_size(); ++p) {
    EXPECT_LE(position.at(graph.gradients(p)), position.at(graph.gradients(p - 2)));
  }
}

TEST(DifferentiateTest, NamesThatTheGraphHasTakenAreAvoided) {
  const v1::Graph forward = Parse(R"pb(
    inputs {
      name: "d(w)"
      dtype: DTYPE_F32
      shape: [ -1, 4 ]
    }
    inputs {
      name: "target"
      dtype: DTYPE_F32
      shape: [ -1, 1 ]
    }
    parameters {
      name: "w"
      shape: [ 1, 4 ]
    }
    nodes {
      name: "y"
      op: "Linear"
      inputs: [ "d(w)", "w" ]
      outputs: "y"
    }
    nodes {
      name: "y/LinearGradWeight"
      op: "MeanSquaredError"
      inputs: [ "y", "target" ]
      outputs: "loss"
    }
    loss: "loss")pb");

  const v1::Graph graph = Differentiate(forward).value();

  EXPECT_TRUE(InferTypes(graph, 3).ok()) << InferTypes(graph, 3).status();
  EXPECT_EQ(graph.gradients(0), "d(w)'");
}

TEST(DifferentiateTest, RefusesWhatHasNoGradient) {
  constexpr absl::string_view kTensors = R"(
      inputs { name: "input" dtype: DTYPE_F32 shape: [-1, 4] }
      inputs { name: "target" dtype: DTYPE_F32 shape: [-1, 4] }
      inputs { name: "label" dtype: DTYPE_I32 shape: -1 }
      parameters { name: "w" shape: [4, 4] }
      nodes { name: "y" op: "Linear" inputs: ["input", "w"] outputs: "y" }
  )";
  const struct {
    const char* rest;
    const char* message;
  } faults[] = {
      {"", "the graph names no loss"},
      {R"(loss: "nowhere")", "loss 'nowhere' is not defined"},
      {R"(parameters { name: "unused" shape: 3 } loss: "l"
          nodes { name: "l" op: "MeanSquaredError" inputs: ["y", "target"] outputs: "l" })",
       "parameter 'unused' does not reach the loss 'l'"},
      {R"(loss: "l" nodes { name: "l" op: "MeanSquaredError" inputs: ["input", "target"] outputs: "l" })",
       "parameter 'w' does not reach the loss 'l'"},
      {R"(loss: "l" nodes { name: "l" op: "MeanSquaredError" inputs: ["input", "y"] outputs: "l" })",
       "node 'l' (MeanSquaredError) has no derivative with respect to 'y'"},
      {R"(loss: "c" nodes { name: "c" op: "CorrectCount" inputs: ["y", "label"] outputs: "c" })",
       "node 'c' (CorrectCount) is no loss function but makes the loss 'c'"},
      {R"(loss: "sum"
          nodes { name: "l" op: "MeanSquaredError" inputs: ["y", "target"] outputs: "l" }
          nodes { name: "sum" op: "Add" inputs: ["l", "l"] outputs: "sum" })",
       "node 'sum' (Add) is no loss function but makes the loss 'sum'"},
      {R"(loss: "m"
          nodes { name: "l" op: "MeanSquaredError" inputs: ["y", "target"] outputs: "l" }
          nodes { name: "m" op: "MeanSquaredError" inputs: ["l", "l"] outputs: "m" })",
       "node 'm' (MeanSquaredError) has no derivative with respect to 'l'"},
      {R"(loss: "l" nodes { name: "s" op: "SoftmaxCrossEntropy" inputs: ["y", "label"] outputs: ["s", "p"] }
          nodes { name: "l" op: "MeanSquaredError" inputs: ["p", "target"] outputs: "l" })",
       "node 's' (SoftmaxCrossEntropy) has no derivative: only the graph's loss may be 'p'"},
      {R"(loss: "l" nodes { name: "a" op: "Accumulate" inputs: ["target", "y"] outputs: "a" }
          nodes { name: "l" op: "MeanSquaredError" inputs: ["a", "target"] outputs: "l" })",
       "node 'a' (Accumulate) has no derivative with respect to 'y'"},
      {R"(loss: "l" gradients: "w"
          nodes { name: "l" op: "MeanSquaredError" inputs: ["y", "target"] outputs: "l" })",
       "the graph is differentiated already"},
      {R"(loss: "l" nodes { name: "l" op: "MeanSquaredError" inputs: ["y", "label"] outputs: "l" })",
       "node 'l' (MeanSquaredError): target is i32[1], must be f32[...]"},
  };
  for (const auto& fault : faults) {
    const absl::Status status = Differentiate(Parse(absl::StrCat(kTensors, fault.rest))).status();

    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()), fault.message);
  }
}

TEST(OperatorTableTest, EveryGradientRuleFitsTheOperatorItNames) {
  const auto find = [](const std::vector<Operand>& operands, absl::string_view name) {
    auto found = std::ranges::find(operands, name, &Operand::name);
    return found == operands.end() ? nullptr : &*found;
  };
  for (const Operator& op : Operators()) {
    for (const GradientRule& rule : op.gradients) {
      const Operator* gradient = FindOperator(rule.op);
      ASSERT_NE(gradient, nullptr) << rule.op;
      ASSERT_EQ(rule.inputs.size(), gradient->inputs.size()) << rule.op;
      ASSERT_EQ(rule.of.size(), gradient->outputs.size()) << rule.op;
      for (absl::string_view input : rule.inputs) {
        EXPECT_TRUE(input == "dy" || find(op.inputs, input) || find(op.outputs, input))
            << op.name << " " << input;
      }
      for (absl::string_view input : rule.of) EXPECT_NE(find(op.inputs, input), nullptr) << op.name;
    }
  }
}

}  // namespace
}  // namespace muster
