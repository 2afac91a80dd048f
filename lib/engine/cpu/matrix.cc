// Matrix products.
#include "kernels/activation.h"
#include "kernels/linear.h"
#include "kernels/matmul.h"
#include "lib/engine/cpu/binding.h"
#include "lib/graph/attributes.h"

namespace muster {
namespace {

// Returns the shape from the types of x[..., I] and w[O, I].
kernels::LinearShape LinearShapeOf(const TensorType& x, const TensorType& w) {
  return {.rows = x.elements() / w.shape[1], .inputs = w.shape[1], .outputs = w.shape[0]};
}

using AffineMap = void (*)(float* y, const float* x, const float* w, const float* bias,
                           kernels::LinearShape shape);

template <AffineMap kMap>
PlannedNode PlanLinear(const CpuNode& n) {
  return {.prepare = Call([shape = LinearShapeOf(n.inputs[0], n.inputs[1])](const NodeMemory& m) {
            kMap(Output(m), Input(m, 0), Input(m, 1), OptionalInput(m, 2), shape);
          })};
}

PlannedNode PlanLinearGelu(const CpuNode& n) {
  const kernels::GeluKind kind = IntegerAttribute(*n.node, "exact") != 0 ? kernels::GeluKind::kExact
                                                                         : kernels::GeluKind::kTanh;
  return {.prepare =
              Call([kind, shape = LinearShapeOf(n.inputs[0], n.inputs[1])](const NodeMemory& m) {
                kernels::LinearGelu(Output(m), Output(m, 1), Input(m, 0), Input(m, 1),
                                    OptionalInput(m, 2), shape, kind);
              })};
}

PlannedNode PlanLinearGradInput(const CpuNode& n) {
  return {.prepare = Call([shape = LinearShapeOf(n.outputs[0], n.inputs[1])](const NodeMemory& m) {
            kernels::LinearGradInput(Output(m), Input(m, 0), Input(m, 1), shape);
          })};
}

PlannedNode PlanLinearGradWeight(const CpuNode& n) {
  return {.prepare = Call([shape = LinearShapeOf(n.inputs[1], n.outputs[0])](const NodeMemory& m) {
            kernels::LinearGradWeight(Output(m), Input(m, 0), Input(m, 1), shape);
          })};
}

PlannedNode PlanLinearGradWeightBias(const CpuNode& n) {
  return {.prepare = Call([shape = LinearShapeOf(n.inputs[1], n.outputs[0])](const NodeMemory& m) {
            kernels::LinearGradWeight(Output(m), Input(m, 0), Input(m, 1), shape);
            kernels::LinearGradBias(Output(m, 1), Input(m, 0), shape);
          })};
}

PlannedNode PlanLinearGradInputGelu(const CpuNode& n) {
  const auto gelu_grad =
      IntegerAttribute(*n.node, "exact") != 0 ? kernels::GeluExactGrad : kernels::GeluGrad;
  return {.prepare = Call([gelu_grad, elements = n.outputs[0].elements(),
                           shape = LinearShapeOf(n.outputs[0], n.inputs[1])](const NodeMemory& m) {
            kernels::LinearGradInput(Output(m), Input(m, 0), Input(m, 1), shape);
            gelu_grad(Output(m), Output(m), Input(m, 2), elements);
          })};
}

PlannedNode PlanLinearGradBias(const CpuNode& n) {
  const kernels::LinearShape shape{.rows = n.rows(0), .inputs = 0, .outputs = n.columns(0)};
  return {.prepare = Call([shape](const NodeMemory& m) {
            kernels::LinearGradBias(Output(m), Input(m, 0), shape);
          })};
}

kernels::MatMulShape MatMulShapeOf(const CpuNode& n, const TensorType& a, const TensorType& b) {
  kernels::MatMulShape shape{.transpose_a = IntegerAttribute(*n.node, "transpose_a") != 0,
                             .transpose_b = IntegerAttribute(*n.node, "transpose_b") != 0};
  const size_t a_rank = a.shape.size(), b_rank = b.shape.size();
  shape.rows = a.shape[a_rank - (shape.transpose_a ? 1 : 2)];
  shape.inner = a.shape[a_rank - (shape.transpose_a ? 2 : 1)];
  shape.columns = b.shape[b_rank - (shape.transpose_b ? 2 : 1)];
  shape.a_batch.assign(a.shape.begin(), a.shape.end() - 2);
  shape.b_batch.assign(b.shape.begin(), b.shape.end() - 2);
  return shape;
}

PlannedNode PlanMatMul(const CpuNode& n) {
  return {.prepare =
              Call([shape = MatMulShapeOf(n, n.inputs[0], n.inputs[1])](const NodeMemory& m) {
                kernels::MatMul(Output(m), Input(m, 0), Input(m, 1), shape);
              })};
}

PlannedNode PlanMatMulGradA(const CpuNode& n) {
  return {
      .shape_only = {1},
      .prepare = Call([shape = MatMulShapeOf(n, n.inputs[1], n.inputs[2])](const NodeMemory& m) {
        kernels::MatMulGradA(Output(m), Input(m, 0), Input(m, 2), shape);
      })};
}

PlannedNode PlanMatMulGradB(const CpuNode& n) {
  return {
      .shape_only = {2},
      .prepare = Call([shape = MatMulShapeOf(n, n.inputs[1], n.inputs[2])](const NodeMemory& m) {
        kernels::MatMulGradB(Output(m), Input(m, 0), Input(m, 1), shape);
      })};
}

}  // namespace

void AddMatrixKernels(CpuKernelTable& table) {
  table["Linear"] = {PlanLinear<kernels::Linear>};
  table["LinearRelu"] = {PlanLinear<kernels::LinearRelu>};
  table["LinearGelu"] = {PlanLinearGelu};
  table["LinearGradInput"] = {PlanLinearGradInput};
  table["LinearGradWeight"] = {PlanLinearGradWeight};
  table["LinearGradBias"] = {PlanLinearGradBias};
  table["LinearGradWeightBias"] = {PlanLinearGradWeightBias};
  table["LinearGradInputGelu"] = {PlanLinearGradInputGelu};
  table["MatMul"] = {PlanMatMul};
  table["MatMulGradA"] = {PlanMatMulGradA};
  table["MatMulGradB"] = {PlanMatMulGradB};
}

}  // namespace muster
