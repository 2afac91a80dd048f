#include "kernels/cuda/reduction.h"

#include "kernels/cuda/cumulative_sum.h"
#include "kernels/cuda/softmax.h"
#include "lib/engine/cuda/binding.h"
#include "lib/graph/attributes.h"

namespace muster {
namespace {

cuda::ReductionShape ReductionOf(const CudaNode& node, const std::vector<int64_t>& sizes) {
  cuda::ReductionShape shape{sizes, std::vector<bool>(sizes.size())};
  const auto rank = static_cast<int64_t>(sizes.size());
  for (int64_t axis : AxesAttribute(*node.node, rank)) shape.reduced[axis] = true;
  return shape;
}

template <bool kMean>
absl::StatusOr<PlannedNode> PlanSum(const CudaNode& node) {
  const cuda::ReductionShape shape = ReductionOf(node, node.shape(0));
  const float factor = kMean ? 1 / static_cast<float>(shape.reductions()) : 1;
  return PlannedNode{.workspace_bytes = cuda::ReductionWorkspaceBytes(shape),
                     .prepare = Enqueue([=, type = node.type(0),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::Sum(m.outputs[0], type, m.inputs[0], type, factor, shape,
                                        m.workspace, stream);
                     })};
}

template <bool kMean>
absl::StatusOr<PlannedNode> PlanSumGrad(const CudaNode& node) {
  const cuda::ReductionShape shape = ReductionOf(node, node.outputs[0].shape);
  const float factor = kMean ? 1 / static_cast<float>(shape.reductions()) : 1;
  return PlannedNode{.shape_only = {1},
                     .prepare = Enqueue([=, type = node.type(0),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::Spread(m.outputs[0], m.inputs[0], type, factor, shape, stream);
                     })};
}

absl::StatusOr<PlannedNode> PlanMaximum(const CudaNode& node) {
  const cuda::ReductionShape shape = ReductionOf(node, node.shape(0));
  return PlannedNode{
      .workspace_bytes = cuda::ReductionWorkspaceBytes(shape),
      .prepare =
          Enqueue([=, type = node.type(0), stream = node.context.stream](const NodeMemory& m) {
            return cuda::Maximum(m.outputs[0], m.inputs[0], type, shape, m.workspace, stream);
          })};
}

absl::StatusOr<PlannedNode> PlanMaximumGrad(const CudaNode& node) {
  const cuda::ReductionShape shape = ReductionOf(node, node.outputs[0].shape);
  return PlannedNode{.workspace_bytes = cuda::ReductionWorkspaceBytes(shape) +
                                        shape.outputs() * int64_t{sizeof(float)},
                     .prepare = Enqueue([=, type = node.type(0),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::MaximumGrad(m.outputs[0], m.inputs[0], m.inputs[1], m.inputs[2],
                                                type, shape, m.workspace, stream);
                     })};
}

enum class Direction { kForward, kBackward };  // the gradient sums from the other end

template <Direction direction>
absl::StatusOr<PlannedNode> PlanCumSum(const CudaNode& node) {
  const std::vector<int64_t>& x = node.shape(0);
  const auto rank = static_cast<int64_t>(x.size());
  const int64_t axis = AxisAttribute(*node.node, rank);
  cuda::CumulativeShape shape = {
      .outer = 1,
      .size = x[axis],
      .inner = 1,
      .exclusive = IntegerAttribute(*node.node, "exclusive") != 0,
      .reverse =
          (IntegerAttribute(*node.node, "reverse") != 0) == (direction == Direction::kForward),
  };
  for (int64_t d = 0; d < axis; ++d) shape.outer *= x[d];
  for (int64_t d = axis + 1; d < rank; ++d) shape.inner *= x[d];
  return PlannedNode{.overwritable = {0},
                     .prepare = Enqueue([shape, type = node.type(0),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::CumulativeSum(m.outputs[0], m.inputs[0], type, shape, stream);
                     })};
}

cuda::SoftmaxShape SoftmaxOf(const CudaNode& node) {
  return {node.rows(0), node.columns(0), node.type(0)};
}

template <cuda::SoftmaxKind kind>
absl::StatusOr<PlannedNode> PlanSoftmax(const CudaNode& node) {
  return PlannedNode{.overwritable = {0},
                     .prepare = Enqueue([shape = SoftmaxOf(node),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::Softmax(kind, m.outputs[0], m.inputs[0], shape, stream);
                     })};
}

template <cuda::SoftmaxKind kind>
absl::StatusOr<PlannedNode> PlanSoftmaxGrad(const CudaNode& node) {
  return PlannedNode{
      .overwritable = {0},
      .prepare =
          Enqueue([shape = SoftmaxOf(node), stream = node.context.stream](const NodeMemory& m) {
            return cuda::SoftmaxGrad(kind, m.outputs[0], m.inputs[0], m.inputs[1], shape, stream);
          })};
}

}  // namespace

void AddReductionKernels(CudaKernelTable& table) {
  table["ReduceSum"] = PlanSum<false>;
  table["ReduceMean"] = PlanSum<true>;
  table["ReduceMax"] = PlanMaximum;
  table["ReduceSumGrad"] = PlanSumGrad<false>;
  table["ReduceMeanGrad"] = PlanSumGrad<true>;
  table["ReduceMaxGrad"] = PlanMaximumGrad;
  table["CumSum"] = PlanCumSum<Direction::kForward>;
  table["CumSumGrad"] = PlanCumSum<Direction::kBackward>;
  table["Softmax"] = PlanSoftmax<cuda::SoftmaxKind::kPlain>;
  table["LogSoftmax"] = PlanSoftmax<cuda::SoftmaxKind::kLog>;
  table["SoftmaxGrad"] = PlanSoftmaxGrad<cuda::SoftmaxKind::kPlain>;
  table["LogSoftmaxGrad"] = PlanSoftmaxGrad<cuda::SoftmaxKind::kLog>;
}

}  // namespace muster
