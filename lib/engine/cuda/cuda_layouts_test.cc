// Tests which tensors of whole models are padded, with the layouts of the CUDA kernels. No GPU is
// needed.
#include "lib/engine/cuda/cuda_layouts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/engine/compiled_graph.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/zoo/zoo.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cuda_layouts_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A registry that chooses the layouts of matrices as CudaKernels does, but has no kernels.
class PaddingKernels : public KernelRegistry {
 public:
  absl::StatusOr<PlannedNode> Plan(const TypedNode& node) override {
    PlannedNode plan;
    plan.prepare = [](const NodeMemory&) -> NodeRun { return nullptr; };
    for (const TensorType& output : node.outputs) {
      if (output.dtype == v1::DTYPE_STATE) plan.state_bytes.push_back(64);
    }
    ChoosePadding(node, plan);
    return plan;
  }
  absl::StatusOr<PlannedNode> PlanReorder(const TensorType&, Layout from, Layout to) override {
    return PlannedNode{.input_layouts = {from},
                       .output_layouts = {to},
                       .prepare = [](const NodeMemory&) -> NodeRun { return nullptr; }};
  }
  int64_t Bytes(const TensorType& type, Layout layout) override { return CudaBytes(type, layout); }
  Layout ParameterLayout(const TensorType& type) override { return CudaParameterLayout(type); }
  bool ReadsAs(Layout from, Layout to) override { return CudaReadsAs(from, to); }
  bool Fetches(Layout layout) override { return CudaFetches(layout); }
};

struct Model {
  std::string name;
  std::vector<std::pair<std::string, double>> arguments;
  bool tied = false;
};

v1::Graph Forward(const Model& model) {
  v1::ModelSpec spec;
  spec.mutable_zoo()->set_name(model.name);
  auto& arguments = *spec.mutable_zoo()->mutable_args()->mutable_fields();
  for (const auto& [name, value] : model.arguments) arguments[name].set_number_value(value);
  arguments["tied"].set_bool_value(model.tied);
  return BuildModel(spec).value();
}

Model Gpt(bool tied) {
  return {"gpt", {{"layers", 1}, {"channels", 64}, {"context", 16}, {"vocabulary", 1001}}, tied};
}
// A model with a bias in its output layer.
const Model kLstm = {"lstm_lm", {{"layers", 1}, {"channels", 32}, {"vocabulary", 1001}}};

class Compiled {
 public:
  Compiled(v1::Graph graph, bool external_gradients = false) : graph_(std::move(graph)) {
    CompiledGraph::Options options{.batch = 2};
    options.external_gradients.resize(graph_.parameters_size(), external_gradients);
    compiled_ = CompiledGraph::Create(graph_, options, kernels_).value();
  }

  const CompiledGraph& operator*() const { return *compiled_; }
  const v1::Graph& graph() const { return graph_; }

  std::vector<std::string> Reorders() const {
    std::vector<std::string> names;
    for (const CompiledGraph::Step& step : compiled_->steps()) {
      if (step.is_reorder) names.push_back(step.node.node->name());
    }
    return names;
  }

  // Returns how many nodes of an op take their first input in `layout`.
  int Count(const std::string& op, Layout layout) const {
    int count = 0;
    for (const CompiledGraph::Step& step : compiled_->steps()) {
      count += step.node.node->op() == op && step.kernel.input_layouts[0] == layout;
    }
    return count;
  }

 private:
  const v1::Graph graph_;
  PaddingKernels kernels_;
  std::unique_ptr<CompiledGraph> compiled_;
};

v1::Graph Training(const Model& model, v1::Precision precision = v1::BF16) {
  return TrainingGraph(Forward(model), {.precision = precision}).value();
}

TEST(CudaLayoutsTest, AHeadOfOddSizeIsPaddedWithoutACopy) {
  for (const Model& model : {Gpt(/*tied=*/true), Gpt(/*tied=*/false), kLstm}) {
    const Compiled compiled(Training(model));
    EXPECT_THAT(compiled.Reorders(), IsEmpty()) << model.name;
    EXPECT_EQ((*compiled).layout(compiled.graph().logits()), kPaddedColumns);
    const char* of_weight = model.name == "lstm_lm" ? "LinearGradWeightBias" : "LinearGradWeight";
    for (const char* op :
         {"SoftmaxCrossEntropy", "SoftmaxCrossEntropyGrad", "LinearGradInput", of_weight}) {
      EXPECT_EQ(compiled.Count(op, kPaddedColumns), 1) << model.name << ": " << op;
    }
  }
}

TEST(CudaLayoutsTest, AnEvaluationReadsPaddedLogitsToo) {
  const Compiled compiled(
      InferenceGraph(Forward(Gpt(/*tied=*/true)), {.precision = v1::FP16}).value());
  EXPECT_THAT(compiled.Reorders(), IsEmpty());
  EXPECT_EQ((*compiled).layout(compiled.graph().logits()), kPaddedColumns);
}

// The device must not write behind memory that the caller provides.
TEST(CudaLayoutsTest, AGradientInExternalMemoryIsCopied) {
  const Compiled compiled(Training(Gpt(/*tied=*/false)), /*external_gradients=*/true);
  EXPECT_THAT(compiled.Reorders(), testing::SizeIs(1));
}

TEST(CudaLayoutsTest, F32StaysPlain) {
  const Compiled compiled(Training(Gpt(/*tied=*/true), v1::FP32));
  EXPECT_THAT(compiled.Reorders(), IsEmpty());
  EXPECT_EQ((*compiled).layout(compiled.graph().logits()), Layout::kPlain);
}

// The padding of every tensor must be inside its own memory.
TEST(CudaLayoutsTest, PaddingOverlapsNothing) {
  const Compiled compiled(Training(Gpt(/*tied=*/false)));
  std::vector<std::byte> arena((*compiled).arena_bytes()), elsewhere(1);
  std::vector<std::byte*> parameters(compiled.graph().parameters_size(), elsewhere.data());
  const CompiledGraph::Memory memory{.arena = arena.data(), .parameters = parameters};
  const auto& steps = (*compiled).steps();
  for (size_t i = 0; i < steps.size(); ++i) {
    const NodeMemory placed = (*compiled).MemoryOf(static_cast<int>(i), memory);
    for (size_t o = 0; o < placed.outputs.size(); ++o) {
      const std::vector<Layout>& layouts = steps[i].kernel.output_layouts;
      if (o >= layouts.size() || layouts[o] == Layout::kPlain) continue;
      const std::byte* begin = placed.outputs[o];
      const std::byte* end = begin + CudaBytes(steps[i].node.outputs[o], layouts[o]);
      EXPECT_LE(end, arena.data() + arena.size());
      for (const std::byte* input : placed.inputs) {
        EXPECT_TRUE(input < begin || input >= end) << steps[i].node.node->name();
      }
    }
  }
}

TEST(CudaLayoutsTest, OnlyOpsThatKnowPaddingSeeIt) {
  const auto seen_by = [](const std::string& op) {
    v1::Node node;
    node.set_op(op);
    TypedNode typed{.node = &node, .layouts = {kPaddedColumns, kPaddedRows, kChannelsLast}};
    HidePadding(typed);
    return typed.layouts;
  };
  EXPECT_THAT(seen_by("LinearGradInput"), ElementsAre(kPaddedColumns, kPaddedRows, kChannelsLast));
  for (const char* op : {"Split", "Concat", "BatchNorm", "MaxPool2d", "LinearGelu"}) {
    EXPECT_THAT(seen_by(op), ElementsAre(Layout::kPlain, Layout::kPlain, kChannelsLast)) << op;
  }
}

TEST(CudaLayoutsTest, SizesArePaddedTo64) {
  EXPECT_EQ(PaddedSize(50257), 50304);
  EXPECT_EQ(PaddedSize(64), 64);
  const auto type = [](std::vector<int64_t> shape) { return TensorType{v1::DTYPE_BF16, shape}; };
  EXPECT_EQ(CudaParameterLayout(type({50257, 768})), kPaddedRows);
  EXPECT_EQ(CudaParameterLayout(type({50257})), kPaddedRows);
  EXPECT_EQ(CudaParameterLayout(type({1000, 768})), Layout::kPlain);  // aligned without padding
  EXPECT_EQ(CudaParameterLayout(type({11, 768})), Layout::kPlain);
  EXPECT_EQ(CudaParameterLayout(type({1001, 3, 3, 3})), Layout::kPlain);
  EXPECT_EQ(CudaBytes(type({50257, 768}), kPaddedRows), 50304 * 768 * 2);
  EXPECT_EQ(CudaBytes(type({4, 8, 50257}), kPaddedColumns), 4 * 8 * 50304 * 2);
}

}  // namespace
}  // namespace muster::cuda_layouts_test
