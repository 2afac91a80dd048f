// Tests the plans of CUDA kernels: layouts of padded tensors, and parts of split graphs. No GPU is
// needed.
#include "lib/engine/cuda/cuda_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/engine/cuda/cuda_layouts.h"
#include "lib/engine/verification/sketch.h"
#include "lib/graph/shape_inference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::cuda_kernels_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr Layout kPlain = Layout::kPlain;

TensorType Floats(std::vector<int64_t> shape) { return {v1::DTYPE_BF16, std::move(shape)}; }

struct Case {
  std::string op;
  verification::SketchAttributes attributes;
  std::vector<TensorType> inputs;
  std::vector<TensorType> outputs;
};

// Returns the plan of a node with inputs in `layout`. The node is gone, so the plan has no
// prepare().
absl::StatusOr<PlannedNode> PlanOf(const Case& c, Layout layout) {
  verification::Sketch s;
  s.Add("node", c.op, std::vector<std::string>(c.inputs.size(), "x"), c.attributes,
        static_cast<int>(c.outputs.size()));
  CudaContext context;
  return CudaKernels(context).Plan({.node = &s.graph.nodes(0),
                                    .inputs = c.inputs,
                                    .outputs = c.outputs,
                                    .layouts = std::vector<Layout>(c.inputs.size(), layout),
                                    .graph_inputs = std::vector<int>(c.inputs.size(), -1)});
}

// Ops that do not know padding read padded tensors as plain, and produce plain tensors.
TEST(CudaKernelsTest, OpsThatDoNotKnowPaddingUsePlainLayouts) {
  const TensorType x = Floats({8, 700}), row = Floats({700}), state = {v1::DTYPE_STATE, {}};
  const TensorType image = Floats({8, 3, 6, 700}), half = Floats({8, 3, 3, 350});
  const TensorType statistic = {v1::DTYPE_F32, {700}};
  const std::vector<Case> cases = {
      {"Split", {{"axis", 1}, {"sizes", {300, 400}}}, {x}, {Floats({8, 300}), Floats({8, 400})}},
      {"Concat", {{"axis", 1}}, {x, x}, {Floats({8, 1400})}},
      {"BatchNorm",
       {{"epsilon", 1e-5}},
       {x, statistic, statistic, row},
       {x, statistic, statistic, statistic, state}},
      {"BatchNormGrad", {}, {x, x, statistic, statistic, state, row}, {x, row}},
      {"MaxPool2d",
       {{"kernel", {2, 2}},
        {"strides", {2, 2}},
        {"padding", {0, 0, 0, 0}},
        {"dilations", {1, 1}},
        {"ceil", 0}},
       {image},
       {half, state}},
      {"Relu", {}, {x}, {x}},
  };
  for (const Layout layout : {kPaddedColumns, kPaddedRows}) {
    for (const Case& c : cases) {
      SCOPED_TRACE(c.op);
      const auto plan = PlanOf(c, layout);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_THAT(plan->input_layouts, Each(kPlain));
      EXPECT_THAT(plan->output_layouts, Each(kPlain));
    }
  }
}

// A segment of its own runs between CUDA graphs, so only nodes that meet the other ranks have one.
TEST(CudaKernelsTest, OnlyLossesAndSumsOfASplitGraphMeetTheOtherRanks) {
  const TensorType ids = {v1::DTYPE_I32, {8}}, row = {v1::DTYPE_F32, {8}}, loss = {v1::DTYPE_F32};
  const TensorType table = Floats({10, 4}), x = Floats({8, 4});
  const auto part = [](verification::SketchAttributes attributes) {
    attributes.insert(attributes.end(), {{"first", 3}, {"whole", 20}});
    return attributes;
  };
  const verification::SketchAttributes of_loss =
      part({{"label_smoothing", 0.1}, {"weight", 1.0}, {"ranks", 2}});
  const std::vector<std::pair<Case, bool>> cases = {
      {{"Embedding", part({}), {ids, table}, {x}}, false},
      {{"EmbeddingGrad", part({}), {x, ids, table}, {table}}, false},
      {{"Dropout", part({{"rate", 0.5}, {"salt", 1}}), {x}, {x}}, false},
      {{"SoftmaxCrossEntropy", of_loss, {x, ids}, {loss, row}}, true},
      {{"SoftmaxCrossEntropyGrad", of_loss, {x, ids, row}, {x}}, false},
      {{"AllReduce", {}, {x}, {x}}, true},
      {{"GradientAllReduce", {}, {x}, {x}}, false},
  };
  for (const auto& [c, meets] : cases) {
    SCOPED_TRACE(c.op);
    const auto plan = PlanOf(c, kPlain);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->is_collective, meets);
    EXPECT_EQ(plan->is_asynchronous, c.op == "AllReduce");
  }
}

TEST(CudaKernelsTest, AnImpossibleReorderIsAnError) {
  CudaContext context;
  CudaKernels kernels(context);
  EXPECT_TRUE(kernels.PlanReorder(Floats({8, 700}), kPaddedColumns, kPlain).ok());
  for (const Layout from : {kPlain, kPaddedColumns}) {  // a spectrogram after a Linear
    EXPECT_TRUE(kernels.PlanReorder(Floats({8, 3, 6, 700}), from, kChannelsLast).ok());
  }
  for (const auto& [shape, from, to] :
       {std::tuple(std::vector<int64_t>{8, 700}, kPlain, kPaddedColumns),
        std::tuple(std::vector<int64_t>{8, 3, 700}, kPaddedColumns, kChannelsLast)}) {
    const absl::Status status = kernels.PlanReorder(Floats(shape), from, to).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr("dimensions from layout"));
  }
}

}  // namespace
}  // namespace muster::cuda_kernels_test
