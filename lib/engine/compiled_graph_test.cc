#include "lib/engine/compiled_graph.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/graph/autodiff.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/zoo/zoo.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::compiled_graph_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kBlocked = static_cast<Layout>(1);

// A device with convolutions that need blocked images, which are 4 bytes longer than plain ones.
class FakeKernels : public KernelRegistry {
 public:
  // `sums_in_place`: whether a sum of the ranks may overwrite its term.
  explicit FakeKernels(bool sums_in_place = true) : sums_in_place_(sums_in_place) {}

  absl::StatusOr<PlannedNode> Plan(const TypedNode& node) override {
    const std::string& op = node.node->op();
    if (op == "Erf") return absl::InvalidArgumentError("not on this device");
    PlannedNode plan;
    plan.prepare = [](const NodeMemory&) -> NodeRun { return nullptr; };
    plan.input_layouts.resize(node.inputs.size());
    plan.output_layouts.resize(node.outputs.size());
    if (op == "Conv2d" || op == "Conv2dGradInput") {
      plan.input_layouts[0] = plan.output_layouts[0] = kBlocked;
      if (op == "Conv2dGradInput") plan.shape_only = {2};
    } else if (op == "Conv2dGradWeight") {
      plan.input_layouts[0] = plan.input_layouts[1] = kBlocked;
      plan.shape_only = {2};
    } else if (op == "Relu" || op == "ReluGrad") {
      std::ranges::fill(plan.input_layouts, node.layouts[0]);
      plan.output_layouts[0] = node.layouts[0];
      plan.overwritable = {0};
    } else if (op == "Flatten" || op == "ReshapeGrad") {
      plan.is_alias = true;
      plan.shape_only = {1};
    } else if (op == "AllReduce") {
      plan.is_collective = plan.is_asynchronous = true;
      if (sums_in_place_) plan.overwritable = {0};
    }
    return plan;
  }

  absl::StatusOr<PlannedNode> PlanReorder(const TensorType&, Layout from, Layout to) override {
    return PlannedNode{.input_layouts = {from},
                       .output_layouts = {to},
                       .prepare = [](const NodeMemory&) -> NodeRun { return nullptr; }};
  }

  int64_t Bytes(const TensorType& type, Layout layout) override {
    return type.bytes() + (layout == kBlocked ? 4 : 0);
  }

 private:
  const bool sums_in_place_;
};

v1::Graph ParseGraph(const std::string& text) {
  v1::Graph graph;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &graph));
  return graph;
}

std::string Node(const std::string& op, const std::string& inputs, const std::string& output) {
  return "nodes { name: '" + output + "' op: '" + op + "' inputs: [" + inputs + "] outputs: '" +
         output + "' }";
}

// Two convolutions with an activation between them, then a linear layer.
v1::Graph ConvolutionalNet() {
  return ParseGraph(R"pb(
                      inputs {
                        name: "x"
                        dtype: DTYPE_F32
                        shape: [ -1, 4, 5, 5 ]
                      }
                      inputs {
                        name: "target"
                        dtype: DTYPE_F32
                        shape: [ -1, 2 ]
                      }
                      parameters {
                        name: "w1"
                        shape: [ 4, 4, 1, 1 ]
                      }
                      parameters {
                        name: "w2"
                        shape: [ 4, 4, 1, 1 ]
                      }
                      parameters {
                        name: "fc"
                        shape: [ 2, 100 ]
                      }
                      loss: "loss"
                    )pb" +
                    Node("Conv2d", "'x', 'w1'", "a") + Node("Relu", "'a'", "b") +
                    Node("Conv2d", "'b', 'w2'", "c") + Node("Relu", "'c'", "d") +
                    Node("Flatten", "'d'", "e") + Node("Linear", "'e', 'fc'", "y") +
                    Node("MeanSquaredError", "'y', 'target'", "loss"));
}

std::vector<std::string> Reorders(const CompiledGraph& compiled) {
  std::vector<std::string> names;
  for (const CompiledGraph::Step& step : compiled.steps()) {
    if (step.is_reorder) names.push_back(step.node.node->name());
  }
  return names;
}

class WithoutReorders : public FakeKernels {
 public:
  absl::StatusOr<PlannedNode> PlanReorder(const TensorType&, Layout, Layout) override {
    return absl::InternalError("no such reorder");
  }
};

TEST(CompiledGraphTest, AnImpossibleReorderNamesTheNodeThatNeedsIt) {
  WithoutReorders kernels;
  const absl::Status status =
      CompiledGraph::Create(ConvolutionalNet(), {.batch = 3}, kernels).status();
  EXPECT_EQ(status, absl::InternalError("node 'a' (Conv2d): no such reorder"));
}

TEST(CompiledGraphTest, LayoutsChangeOnlyAtTheEdgesOfARunOfConvolutions) {
  const v1::Graph graph = ConvolutionalNet();
  FakeKernels kernels;
  const auto compiled = CompiledGraph::Create(graph, {.batch = 3}, kernels).value();
  EXPECT_THAT(Reorders(*compiled), ElementsAre("x/Reorder", "d/Reorder"));
}

TEST(CompiledGraphTest, ForwardAndBackwardShareOneReorderedTensor) {
  const v1::Graph graph = Differentiate(ConvolutionalNet()).value();
  FakeKernels kernels;
  const auto compiled = CompiledGraph::Create(graph, {.batch = 3}, kernels).value();
  // The forward pass reorders two tensors. The gradient of the first convolution's weight reads the
  // same reordered x. Only the gradient that comes back through Flatten needs a third reorder.
  EXPECT_THAT(Reorders(*compiled), testing::SizeIs(3));
}

TEST(CompiledGraphTest, OutputsOfTheGraphArePlain) {
  v1::Graph graph = ConvolutionalNet();
  graph.set_logits("c");
  FakeKernels kernels;
  const auto compiled = CompiledGraph::Create(graph, {.batch = 3}, kernels).value();
  // The convolution writes c blocked, and a reorder makes the plain c. The activation stays
  // blocked.
  EXPECT_THAT(Reorders(*compiled), testing::Contains("c/Reorder"));
}

// A device with convolution weights that are plain with extra bytes behind them. It fetches outputs
// in any layout.
class LongParameters : public FakeKernels {
 public:
  Layout ParameterLayout(const TensorType& type) override {
    return type.shape.size() == 4 ? kLong : Layout::kPlain;
  }
  bool ReadsAs(Layout from, Layout to) override {
    return from == to || (from == kLong && to == Layout::kPlain);
  }
  bool Fetches(Layout) override { return true; }
  static constexpr auto kLong = static_cast<Layout>(2);
};

TEST(CompiledGraphTest, ATensorThatReadsAsPlainIsNotReordered) {
  v1::Graph graph = ConvolutionalNet();
  graph.set_logits("c");
  LongParameters kernels;
  const auto compiled = CompiledGraph::Create(graph, {.batch = 3}, kernels).value();
  EXPECT_THAT(Reorders(*compiled), ElementsAre("x/Reorder", "d/Reorder"));
  EXPECT_EQ(compiled->layout("w2"), LongParameters::kLong);
  EXPECT_EQ(compiled->layout("c"), kBlocked);
}

// The steps that await and announce each parameter.
struct Flow {
  std::map<int, std::string> awaited_by;
  std::map<int, std::string> ready_after;
};

Flow FlowOf(const CompiledGraph& compiled) {
  Flow flow;
  for (const CompiledGraph::Step& step : compiled.steps()) {
    for (int p : step.awaits) flow.awaited_by[p] = step.node.node->name();
    for (int p : step.ready) flow.ready_after[p] = step.node.node->name();
  }
  return flow;
}

TEST(CompiledGraphTest, ParametersAreAwaitedBeforeTheFirstUseAndReadyAfterTheLast) {
  const v1::Graph graph = Differentiate(ConvolutionalNet()).value();
  FakeKernels kernels;
  for (bool external : {true, false}) {
    const auto compiled =
        CompiledGraph::Create(
            graph, {.batch = 3, .external_gradients = std::vector<bool>(3, external)}, kernels)
            .value();
    const Flow flow = FlowOf(*compiled);
    EXPECT_EQ(flow.awaited_by, (std::map<int, std::string>{{0, "a"}, {1, "c"}, {2, "y"}}));
    ASSERT_EQ(flow.ready_after.size(), 3);
    EXPECT_EQ(flow.ready_after.at(0), "a/Conv2dGradWeight");
    EXPECT_EQ(flow.ready_after.at(1), "c/Conv2dGradInput");
    EXPECT_EQ(flow.ready_after.at(2), "y/LinearGradInput");
  }
}

TEST(CompiledGraphTest, GradientsInTheArenaStayIntactUntilTheyAreReady) {
  const v1::Graph graph = Differentiate(ConvolutionalNet()).value();
  FakeKernels kernels;
  const auto compiled =
      CompiledGraph::Create(graph, {.batch = 3, .external_gradients = {false, false, false}},
                            kernels)
          .value();
  std::vector<std::byte> arena(compiled->arena_bytes());
  std::vector<std::byte> bytes(3);
  const std::vector<std::byte*> parameters{&bytes[0], &bytes[1], &bytes[2]};
  const CompiledGraph::Memory memory{.arena = arena.data(), .parameters = parameters};
  // No step between the one that writes a gradient and the one that makes it ready may write to the
  // gradient's memory.
  for (int p = 0; p < 3; ++p) {
    const std::string& name = graph.gradients(p);
    const std::byte* begin = compiled->Address(name, memory);
    const std::byte* end = begin + compiled->type(name).bytes();
    bool is_written = false;
    for (int i = 0; i < compiled->steps().size(); ++i) {
      const CompiledGraph::Step& step = compiled->steps()[i];
      const NodeMemory placed = compiled->MemoryOf(i, memory);
      const bool writes = std::ranges::count(step.node.node->outputs(), name) > 0;
      for (int o = 0; is_written && o < placed.outputs.size(); ++o) {
        EXPECT_TRUE(placed.outputs[o] + step.node.outputs[o].bytes() <= begin ||
                    placed.outputs[o] >= end)
            << step.node.node->name() << " writes over " << name;
      }
      is_written |= writes;
      if (std::ranges::count(step.ready, p) > 0) break;
    }
    EXPECT_TRUE(is_written);
  }
}

// Two sums of the ranks with nodes behind them that do not read the sums.
v1::Graph GraphOfSums() {
  return ParseGraph(
      R"pb(
        inputs {
          name: "x"
          dtype: DTYPE_F32
          shape: [ -1, 8 ]
        }
        logits: "y"
      )pb" +
      Node("Exp", "'x'", "a") + Node("AllReduce", "'a'", "sum") + Node("Exp", "'x'", "b") +
      Node("Exp", "'b'", "c") + Node("Add", "'sum', 'c'", "d") + Node("AllReduce", "'d'", "next") +
      Node("Mul", "'next', 'd'", "e") + Node("AllReduce", "'e'", "last") + Node("Exp", "'d'", "f") +
      Node("AllReduce", "'f'", "other") + Node("Add", "'last', 'other'", "y"));
}

TEST(CompiledGraphTest, TheFirstReaderAwaitsASumThatRunsBesideOtherNodes) {
  const v1::Graph graph = GraphOfSums();
  FakeKernels kernels;
  const auto compiled = CompiledGraph::Create(graph, {.batch = 2}, kernels).value();
  std::map<std::string, std::string> awaited;
  for (const CompiledGraph::Step& step : compiled->steps()) {
    if (step.awaits_step < 0) continue;
    awaited[compiled->steps()[step.awaits_step].node.node->name()] = step.node.node->name();
  }
  // `next` and `other` are read by the next node. The sum `other` awaits `last`, because sums have
  // one order.
  EXPECT_EQ(awaited, (std::map<std::string, std::string>{{"sum", "d"}, {"last", "other"}}));
}

// Each layer of a gpt has two such sums, and the head has one.
TEST(CompiledGraphTest, SumsOfBackwardRunBesideTheGradientsOfWeights) {
  v1::ModelSpec spec;
  spec.mutable_zoo()->set_name("gpt");
  auto& arguments = *spec.mutable_zoo()->mutable_args()->mutable_fields();
  for (const auto& [name, value] : {std::pair("layers", 3), std::pair("heads", 2),
                                    std::pair("channels", 8), std::pair("vocabulary", 17)}) {
    arguments[name].set_number_value(value);
  }
  for (const bool recompute : {false, true}) {
    const v1::Graph graph =
        TrainingGraph(BuildModel(spec).value(),
                      {.recompute = recompute, .tensor_parallel = {.degree = 2, .rank = 1}})
            .value();
    FakeKernels kernels;
    const auto compiled = CompiledGraph::Create(graph, {.batch = 2}, kernels).value();
    int sums = 0;
    for (int end = 0; end < compiled->steps().size(); ++end) {
      const int sum = compiled->steps()[end].awaits_step;
      if (sum < 0) continue;
      ++sums;
      for (int i = sum + 1; i < end; ++i) {
        EXPECT_THAT(compiled->steps()[i].node.node->op(), HasSubstr("LinearGradWeight"));
      }
    }
    EXPECT_EQ(sums, 3 * 2 + 1);
  }
}

TEST(CompiledGraphTest, ASumKeepsItsMemoryUntilItIsAwaited) {
  const v1::Graph graph = GraphOfSums();
  for (const bool in_place : {true, false}) {
    FakeKernels kernels(in_place);
    const auto compiled = CompiledGraph::Create(graph, {.batch = 2}, kernels).value();
    std::vector<std::byte> arena(compiled->arena_bytes());
    const CompiledGraph::Memory memory{.arena = arena.data()};
    EXPECT_EQ(compiled->Address("a", memory) == compiled->Address("sum", memory), in_place);
    int sums = 0;
    for (int end = 0; end < compiled->steps().size(); ++end) {
      const int sum = compiled->steps()[end].awaits_step;
      if (sum < 0) continue;
      ++sums;
      const NodeMemory own = compiled->MemoryOf(sum, memory);
      for (int i = sum + 1; i < end; ++i) {
        for (const std::byte* output : compiled->MemoryOf(i, memory).outputs) {
          EXPECT_NE(output, own.inputs[0]);
          EXPECT_NE(output, own.outputs[0]);
        }
      }
    }
    EXPECT_EQ(sums, 2);
  }
}

TEST(CompiledGraphTest, ConstantsAreNotStepsAndKeepTheirMemory) {
  const v1::Graph graph = ParseGraph(R"pb(
                                       inputs {
                                         name: "x"
                                         dtype: DTYPE_F32
                                         shape: [ -1, 8 ]
                                       }
                                       nodes {
                                         name: "c"
                                         op: "Constant"
                                         outputs: "c"
                                         attributes {
                                           key: "shape"
                                           value { integers { values: [ 2, 8 ] } }
                                         }
                                         attributes {
                                           key: "value"
                                           value { f: 3 }
                                         }
                                       }
                                       logits: "y"
                                     )pb" +
                                     Node("Relu", "'x'", "a") + Node("Add", "'a', 'c'", "b") +
                                     Node("Relu", "'b'", "y"));
  FakeKernels kernels;
  const auto compiled = CompiledGraph::Create(graph, {.batch = 2}, kernels).value();
  ASSERT_EQ(compiled->constants().size(), 1);
  EXPECT_EQ(compiled->steps().size(), 3);
  std::vector<std::byte> arena(compiled->arena_bytes());
  const CompiledGraph::Memory memory{.arena = arena.data()};
  const std::byte* constant = compiled->Address("c", memory);
  for (int i = 0; i < 3; ++i) {
    for (const std::byte* output : compiled->MemoryOf(i, memory).outputs) {
      EXPECT_GE(std::abs(output - constant), 64);
    }
  }
}

TEST(CompiledGraphTest, ATensorKnowsWhichGraphInputItHolds) {
  const v1::Graph graph =
      ParseGraph(R"pb(
                   inputs {
                     name: "x"
                     dtype: DTYPE_F32
                     shape: [ -1, 2, 3 ]
                   }
                   inputs {
                     name: "target"
                     dtype: DTYPE_F32
                     shape: [ -1, 2, 3 ]
                   }
                   loss: "loss"
                 )pb" +
                 Node("Flatten", "'x'", "a") + Node("Flatten", "'target'", "b") +
                 Node("MeanSquaredError", "'a', 'b'", "loss"));
  FakeKernels kernels;
  const auto compiled = CompiledGraph::Create(graph, {.batch = 4}, kernels).value();
  EXPECT_THAT(compiled->steps().back().node.graph_inputs, ElementsAre(0, 1));
}

TEST(CompiledGraphTest, AnOpWithoutAKernelIsRefusedByNode) {
  const v1::Graph graph = ParseGraph(R"pb(
                                       inputs {
                                         name: "x"
                                         dtype: DTYPE_F32
                                         shape: [ -1, 2 ]
                                       }
                                     )pb" +
                                     Node("Erf", "'x'", "error.function"));
  FakeKernels kernels;
  const auto compiled = CompiledGraph::Create(graph, {.batch = 4}, kernels);
  EXPECT_TRUE(absl::IsInvalidArgument(compiled.status()));
  EXPECT_THAT(std::string(compiled.status().message()),
              HasSubstr("node 'error.function' (Erf): not on this device"));
}

// The work per node must not grow with the graph.
TEST(CompiledGraphTest, ALongGraphIsPlacedInOnePass) {
  std::string text = R"pb(inputs {
                            name: "x0"
                            dtype: DTYPE_F32
                            shape: [ -1, 4 ]
                          })pb";
  constexpr int kNodes = 20000;
  for (int i = 0; i < kNodes; ++i) {
    text += Node("Relu", "'x" + std::to_string(i) + "'", "x" + std::to_string(i + 1));
  }
  const v1::Graph graph = ParseGraph(text);
  FakeKernels kernels;
  const auto compiled = CompiledGraph::Create(graph, {.batch = 1}, kernels).value();
  EXPECT_EQ(compiled->arena_bytes(), 2 * 64);  // x0, and one for all others
}

}  // namespace
}  // namespace muster::compiled_graph_test
