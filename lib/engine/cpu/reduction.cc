// Reductions and softmax.
#include "kernels/reduction.h"

#include "kernels/cumulative_sum.h"
#include "kernels/softmax.h"
#include "lib/engine/cpu/binding.h"
#include "lib/graph/attributes.h"

namespace muster {
namespace {

std::vector<int64_t> AxesOf(const CpuNode& n) { return IntegersAttribute(*n.node, "axes"); }

using Reduction = void (*)(float* y, const kernels::Operand& x, kernels::Dimensions axes);

template <Reduction kReduction>
PlannedNode PlanReduction(const CpuNode& n) {
  return {.prepare = Call([x = n.inputs[0].shape, axes = AxesOf(n)](const NodeMemory& m) {
            kReduction(Output(m), OperandOf(m, 0, x), axes);
          })};
}

using ReductionGrad = void (*)(float* dx, kernels::Dimensions to, const float* dy,
                               kernels::Dimensions axes);

template <ReductionGrad kGrad>
PlannedNode PlanReductionGrad(const CpuNode& n) {
  return {.shape_only = {1},
          .prepare = Call([to = n.outputs[0].shape, axes = AxesOf(n)](const NodeMemory& m) {
            kGrad(Output(m), to, Input(m, 0), axes);
          })};
}

PlannedNode PlanReduceMaxGrad(const CpuNode& n) {
  return {.overwritable = {1},
          .prepare = Call([x = n.inputs[1].shape, axes = AxesOf(n)](const NodeMemory& m) {
            kernels::ReduceMaxGrad(Output(m), Input(m, 0), OperandOf(m, 1, x), Input(m, 2), axes);
          })};
}

enum class Direction { kForward, kBackward };  // the gradient sums from the other end

template <Direction kDirection>
PlannedNode PlanCumSum(const CpuNode& n) {
  const std::vector<int64_t>& x = n.inputs[0].shape;
  const auto axis = x.begin() + AxisAttribute(*n.node, x.size());
  const kernels::CumulativeShape shape = {
      .outer = kernels::Elements({x.begin(), axis}),
      .size = *axis,
      .inner = kernels::Elements({axis + 1, x.end()}),
      .exclusive = IntegerAttribute(*n.node, "exclusive") != 0,
      .reverse = (IntegerAttribute(*n.node, "reverse") != 0) == (kDirection == Direction::kForward),
  };
  const bool is_integer = n.inputs[0].dtype == v1::DTYPE_I32;
  return {.overwritable = {0}, .prepare = Call([shape, is_integer](const NodeMemory& m) {
                                 if (is_integer) {
                                   kernels::CumulativeSum(IntegerOutput(m), Ids(m, 0), shape);
                                 } else {
                                   kernels::CumulativeSum(Output(m), Input(m, 0), shape);
                                 }
                               })};
}

kernels::SoftmaxShape SoftmaxShapeOf(const CpuNode& n) {
  return {.rows = n.rows(0), .classes = n.columns(0)};
}

using SoftmaxFunction = void (*)(float* y, const float* x, kernels::SoftmaxShape shape);

template <SoftmaxFunction kFunction>
PlannedNode PlanSoftmax(const CpuNode& n) {
  return {.overwritable = {0}, .prepare = Call([shape = SoftmaxShapeOf(n)](const NodeMemory& m) {
                                 kFunction(Output(m), Input(m, 0), shape);
                               })};
}

using SoftmaxDerivative = void (*)(float* dx, const float* dy, const float* y,
                                   kernels::SoftmaxShape shape);

template <SoftmaxDerivative kDerivative>
PlannedNode PlanSoftmaxGrad(const CpuNode& n) {
  return {.overwritable = {0, 1}, .prepare = Call([shape = SoftmaxShapeOf(n)](const NodeMemory& m) {
                                    kDerivative(Output(m), Input(m, 0), Input(m, 1), shape);
                                  })};
}

}  // namespace

void AddReductionKernels(CpuKernelTable& table) {
  table["ReduceSum"] = {PlanReduction<kernels::ReduceSum>};
  table["ReduceMean"] = {PlanReduction<kernels::ReduceMean>};
  table["ReduceMax"] = {PlanReduction<kernels::ReduceMax>};
  table["ReduceSumGrad"] = {PlanReductionGrad<kernels::ReduceSumGrad>};
  table["ReduceMeanGrad"] = {PlanReductionGrad<kernels::ReduceMeanGrad>};
  table["ReduceMaxGrad"] = {PlanReduceMaxGrad};
  table["CumSum"] = {PlanCumSum<Direction::kForward>};
  table["CumSumGrad"] = {PlanCumSum<Direction::kBackward>};
  table["Softmax"] = {PlanSoftmax<kernels::Softmax>};
  table["LogSoftmax"] = {PlanSoftmax<kernels::LogSoftmax>};
  table["SoftmaxGrad"] = {PlanSoftmaxGrad<kernels::SoftmaxGrad>};
  table["LogSoftmaxGrad"] = {PlanSoftmaxGrad<kernels::LogSoftmaxGrad>};
}

}  // namespace muster
