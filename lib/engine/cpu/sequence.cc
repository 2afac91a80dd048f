// Attention and recurrence.
#include "kernels/attention.h"
#include "kernels/gru.h"
#include "kernels/lstm.h"
#include "lib/engine/cpu/binding.h"
#include "lib/graph/attributes.h"

namespace muster {
namespace {

// --- Attention ----------------------------------------------------------------------------------

kernels::AttentionShape AttentionShapeOf(const CpuNode& n, const TensorType& q, const TensorType& k,
                                         const TensorType& v) {
  return {.batch = q.shape[0],
          .queries = q.shape[1],
          .keys = k.shape[1],
          .heads = IntegerAttribute(*n.node, "heads"),
          .channels = q.shape[2],
          .values = v.shape[2],
          .causal = IntegerAttribute(*n.node, "causal") != 0,
          .scale = static_cast<float>(AttentionScale(*n.node, q.shape))};
}

// Returns the shape of a self-attention of qkv[B, T, 3C].
kernels::AttentionShape SelfAttentionShapeOf(const CpuNode& n, TensorType qkv) {
  qkv.shape[2] /= 3;
  return {.batch = qkv.shape[0],
          .queries = qkv.shape[1],
          .keys = qkv.shape[1],
          .heads = IntegerAttribute(*n.node, "heads"),
          .channels = qkv.shape[2],
          .values = qkv.shape[2],
          .causal = IntegerAttribute(*n.node, "causal") != 0,
          .scale =
              1 / std::sqrt(static_cast<float>(qkv.shape[2] / IntegerAttribute(*n.node, "heads")))};
}

// The optional mask, input `i`, with the dimensions that it has.
class Mask {
 public:
  Mask(const CpuNode& n, int i) : input_(i) {
    if (i < n.inputs.size()) dimensions_ = n.inputs[i].shape;
  }

  kernels::AttentionMask In(const NodeMemory& m) const {
    if (dimensions_.empty()) return {};
    return {Input(m, input_), dimensions_};
  }

 private:
  int input_;
  std::vector<int64_t> dimensions_;
};

PlannedNode PlanAttention(const CpuNode& n) {
  const kernels::AttentionShape shape = AttentionShapeOf(n, n.inputs[0], n.inputs[1], n.inputs[2]);
  return {.prepare = Call([shape, mask = Mask(n, 3)](const NodeMemory& m) {
            kernels::Attention(Output(m), Output(m, 1), Input(m, 0), Input(m, 1), Input(m, 2),
                               mask.In(m), shape);
          })};
}

PlannedNode PlanAttentionGrad(const CpuNode& n) {
  const kernels::AttentionShape shape = AttentionShapeOf(n, n.inputs[1], n.inputs[2], n.inputs[3]);
  return {.prepare = Call([shape, mask = Mask(n, 6)](const NodeMemory& m) {
            kernels::AttentionGrad(Output(m), Output(m, 1), Output(m, 2), Input(m, 0), Input(m, 1),
                                   Input(m, 2), Input(m, 3), Input(m, 4), Input(m, 5), mask.In(m),
                                   shape);
          })};
}

PlannedNode PlanSelfAttention(const CpuNode& n) {
  return {.prepare = Call([shape = SelfAttentionShapeOf(n, n.inputs[0]),
                           mask = Mask(n, 1)](const NodeMemory& m) {
            kernels::SelfAttention(Output(m), Output(m, 1), Input(m, 0), mask.In(m), shape);
          })};
}

PlannedNode PlanSelfAttentionGrad(const CpuNode& n) {
  return {.prepare = Call([shape = SelfAttentionShapeOf(n, n.inputs[1]),
                           mask = Mask(n, 4)](const NodeMemory& m) {
            kernels::SelfAttentionGrad(Output(m), Input(m, 0), Input(m, 1), Input(m, 2),
                                       Input(m, 3), mask.In(m), shape);
          })};
}

// --- Recurrence ---------------------------------------------------------------------------------

// Returns the shape from x[B, T, I] and r[D, gates H, H].
kernels::RecurrentShape RecurrentShapeOf(const CpuNode& n, const TensorType& x,
                                         const TensorType& r) {
  return {.batch = x.shape[0],
          .time = x.shape[1],
          .inputs = x.shape[2],
          .hidden = r.shape[2],
          .directions = r.shape[0],
          .reverse = IntegerAttribute(*n.node, "reverse") != 0};
}

int64_t FloatBytes(int64_t floats) { return floats * int64_t{sizeof(float)}; }

PlannedNode PlanLstm(const CpuNode& n) {
  const kernels::RecurrentShape shape = RecurrentShapeOf(n, n.inputs[0], n.inputs[2]);
  return {.state_bytes = {FloatBytes(kernels::LstmStateFloats(shape))},
          .prepare = Call([shape](const NodeMemory& m) {
            kernels::Lstm(Output(m), Output(m, 1), Output(m, 2), Output(m, 3), Input(m, 0),
                          Input(m, 1), Input(m, 2), Input(m, 3), OptionalInput(m, 4),
                          OptionalInput(m, 5), shape);
          })};
}

PlannedNode PlanLstmGrad(const CpuNode& n) {
  const kernels::RecurrentShape shape = RecurrentShapeOf(n, n.inputs[3], n.inputs[5]);
  return {.workspace_bytes = FloatBytes(kernels::LstmGradWorkspaceFloats(shape)),
          .prepare = Call([shape](const NodeMemory& m) {
            kernels::LstmGrad({.dx = Output(m),
                               .dw = Output(m, 1),
                               .dr = Output(m, 2),
                               .dbias = Output(m, 3),
                               .dh0 = OptionalOutput(m, 4),
                               .dc0 = OptionalOutput(m, 5)},
                              Input(m, 0), Input(m, 1), Input(m, 2), Input(m, 3), Input(m, 4),
                              Input(m, 5), Input(m, 7), Input(m, 8), OptionalInput(m, 9),
                              OptionalInput(m, 10), Workspace(m), shape);
          })};
}

PlannedNode PlanGru(const CpuNode& n) {
  const kernels::RecurrentShape shape = RecurrentShapeOf(n, n.inputs[0], n.inputs[2]);
  return {.workspace_bytes = FloatBytes(kernels::GruWorkspaceFloats(shape)),
          .state_bytes = {FloatBytes(kernels::GruStateFloats(shape))},
          .prepare = Call([shape](const NodeMemory& m) {
            kernels::Gru(Output(m), Output(m, 1), Output(m, 2), Input(m, 0), Input(m, 1),
                         Input(m, 2), Input(m, 3), OptionalInput(m, 4), Workspace(m), shape);
          })};
}

PlannedNode PlanGruGrad(const CpuNode& n) {
  const kernels::RecurrentShape shape = RecurrentShapeOf(n, n.inputs[2], n.inputs[4]);
  return {.workspace_bytes = FloatBytes(kernels::GruGradWorkspaceFloats(shape)),
          .prepare = Call([shape](const NodeMemory& m) {
            kernels::GruGrad({.dx = Output(m),
                              .dw = Output(m, 1),
                              .dr = Output(m, 2),
                              .dbias = Output(m, 3),
                              .dh0 = OptionalOutput(m, 4)},
                             Input(m, 0), Input(m, 1), Input(m, 2), Input(m, 3), Input(m, 4),
                             Input(m, 6), Input(m, 7), OptionalInput(m, 8), Workspace(m), shape);
          })};
}

}  // namespace

void AddSequenceKernels(CpuKernelTable& table) {
  table["Attention"] = {PlanAttention};
  table["AttentionGrad"] = {PlanAttentionGrad};
  table["SelfAttention"] = {PlanSelfAttention};
  table["SelfAttentionGrad"] = {PlanSelfAttentionGrad};
  table["Lstm"] = {PlanLstm};
  table["LstmGrad"] = {PlanLstmGrad};
  table["Gru"] = {PlanGru};
  table["GruGrad"] = {PlanGruGrad};
}

}  // namespace muster
