// Attention.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention.h"
#include "lib/engine/cuda/binding.h"
#include "lib/graph/attributes.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using Shape = std::vector<int64_t>;

// Returns the shape of an attention of q[B, T, C], k[B, S, C] and v[B, S, D].
cuda::AttentionShape AttentionShapeOf(const CudaNode& node, const Shape& q, const Shape& k,
                                      const Shape& v) {
  const int64_t heads = IntegerAttribute(*node.node, "heads");
  return {.batch = q[0],
          .queries = q[1],
          .keys = k[1],
          .heads = heads,
          .head_channels = q[2] / heads,
          .head_values = v[2] / heads,
          .q_row = q[2],
          .k_row = k[2],
          .v_row = v[2],
          .causal = IntegerAttribute(*node.node, "causal") != 0,
          .scale = static_cast<float>(AttentionScale(*node.node, q)),
          .type = node.type(0)};
}

// Returns the shape of a self-attention of qkv[B, T, 3C].
cuda::AttentionShape SelfAttentionShapeOf(const CudaNode& node, const Shape& qkv) {
  const int64_t heads = IntegerAttribute(*node.node, "heads");
  const int64_t head = qkv[2] / 3 / heads;
  return {.batch = qkv[0],
          .queries = qkv[1],
          .keys = qkv[1],
          .heads = heads,
          .head_channels = head,
          .head_values = head,
          .q_row = qkv[2],
          .k_row = qkv[2],
          .v_row = qkv[2],
          .causal = IntegerAttribute(*node.node, "causal") != 0,
          .scale = 1 / std::sqrt(static_cast<float>(head)),
          .type = node.type(0)};
}

// The addresses of q, k and v, or of their gradients, in qkv.
struct QkvParts {
  std::byte *q, *k, *v;
};

QkvParts PartsOf(std::byte* qkv, const cuda::AttentionShape& shape) {
  const int64_t bytes = shape.q_row / 3 * cuda::Bytes(shape.type);
  return {qkv, qkv + bytes, qkv + 2 * bytes};
}

// The optional mask, input `i`, in f32. Each dimension is that of the scores or 1.
class Mask {
 public:
  Mask(const CudaNode& node, int i) : input_(i) {
    if (input_ >= static_cast<int>(node.inputs.size())) return;
    const Shape& shape = node.shape(i);  // [B or 1, H or 1, T or 1, S]
    shape_ = {.batch = shape[0], .heads = shape[1], .queries = shape[2]};
    const int64_t of_head = shape[2] * shape[3], of_sample = shape[1] * of_head;
    strides_ = {.batch_stride = shape[0] == 1 ? 0 : of_sample,
                .head_stride = shape[1] == 1 ? 0 : of_head,
                .query_stride = shape[2] == 1 ? 0 : shape[3]};
  }

  const cuda::AttentionMaskShape& shape() const { return shape_; }

  cuda::AttentionMask In(const NodeMemory& m) const {
    cuda::AttentionMask mask = strides_;
    if (std::byte* data = OptionalInput(m, input_)) mask.data = Floats(data);
    return mask;
  }

 private:
  int input_;
  cuda::AttentionMaskShape shape_;
  cuda::AttentionMask strides_;
};

absl::Status CheckHeads(const cuda::AttentionShape& shape) {
  const int64_t widest = std::max(shape.head_channels, shape.head_values);
  if (widest <= cuda::kHeadMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("heads of ", widest, " channels; the CUDA kernel takes ", cuda::kHeadMax));
}

int64_t WorkspaceBytes(const cuda::AttentionShape& shape) {
  return shape.batch * shape.heads * shape.queries * int64_t{sizeof(float)};
}

// Plans the outputs y and lse from inputs_of(memory).
template <typename F>
absl::StatusOr<PlannedNode> PlanForward(const CudaNode& node, const cuda::AttentionShape& shape,
                                        const Mask& mask, F inputs_of) {
  RETURN_IF_ERROR(CheckHeads(shape));
  if (const auto fused = node.context.Choose(shape, mask.shape())) {
    return PlannedNode{
        .workspace_bytes = fused->forward_workspace_bytes() + kWorkspaceAlignment,
        .prepare = Enqueue([fused, inputs_of, stream = node.context.stream](const NodeMemory& m) {
          return fused->Forward(m.outputs[0], Floats(m.outputs[1]), inputs_of(m),
                                Align(m.workspace), stream);
        })};
  }
  return PlannedNode{
      .prepare = Enqueue([shape, inputs_of, stream = node.context.stream](const NodeMemory& m) {
        return cuda::Attention(m.outputs[0], Floats(m.outputs[1]), inputs_of(m), shape, stream);
      })};
}

// The inputs and outputs of a derivative.
struct Backward {
  cuda::AttentionGradients gradients;
  std::byte *dy, *y;
  float* lse;
  cuda::AttentionInputs inputs;
};

template <typename F>
absl::StatusOr<PlannedNode> PlanBackward(const CudaNode& node, const cuda::AttentionShape& shape,
                                         const Mask& mask, F operands_of) {
  const auto fused = node.context.Choose(shape, mask.shape());
  if (fused != nullptr && fused->has_backward()) {
    return PlannedNode{
        .workspace_bytes = fused->backward_workspace_bytes() + kWorkspaceAlignment,
        .prepare = Enqueue([fused, operands_of, stream = node.context.stream](const NodeMemory& m) {
          const Backward b = operands_of(m);
          return fused->Backward(b.gradients, b.dy, b.y, b.lse, b.inputs, Align(m.workspace),
                                 stream);
        })};
  }
  return PlannedNode{
      .workspace_bytes = WorkspaceBytes(shape),
      .prepare = Enqueue([shape, operands_of, stream = node.context.stream](const NodeMemory& m) {
        const Backward b = operands_of(m);
        return cuda::AttentionGrad(b.gradients, b.dy, b.y, b.lse, b.inputs, shape,
                                   Floats(m.workspace), stream);
      })};
}

absl::StatusOr<PlannedNode> PlanAttention(const CudaNode& node) {
  const auto shape = AttentionShapeOf(node, node.shape(0), node.shape(1), node.shape(2));
  const Mask mask(node, 3);
  return PlanForward(node, shape, mask, [mask](const NodeMemory& m) {
    return cuda::AttentionInputs{m.inputs[0], m.inputs[1], m.inputs[2], mask.In(m)};
  });
}

// Inputs: dy, q, k, v, y, lse, mask?.
absl::StatusOr<PlannedNode> PlanAttentionGrad(const CudaNode& node) {
  const auto shape = AttentionShapeOf(node, node.shape(1), node.shape(2), node.shape(3));
  const Mask mask(node, 6);
  return PlanBackward(node, shape, mask, [mask](const NodeMemory& m) {
    return Backward{.gradients = {m.outputs[0], m.outputs[1], m.outputs[2]},
                    .dy = m.inputs[0],
                    .y = m.inputs[4],
                    .lse = Floats(m.inputs[5]),
                    .inputs = {m.inputs[1], m.inputs[2], m.inputs[3], mask.In(m)}};
  });
}

absl::StatusOr<PlannedNode> PlanSelfAttention(const CudaNode& node) {
  const auto shape = SelfAttentionShapeOf(node, node.shape(0));
  const Mask mask(node, 1);
  return PlanForward(node, shape, mask, [shape, mask](const NodeMemory& m) {
    const auto [q, k, v] = PartsOf(m.inputs[0], shape);
    return cuda::AttentionInputs{q, k, v, mask.In(m)};
  });
}

// Inputs: dy, qkv, y, lse, mask?.
absl::StatusOr<PlannedNode> PlanSelfAttentionGrad(const CudaNode& node) {
  const auto shape = SelfAttentionShapeOf(node, node.shape(1));
  const Mask mask(node, 4);
  return PlanBackward(node, shape, mask, [shape, mask](const NodeMemory& m) {
    const auto [q, k, v] = PartsOf(m.inputs[1], shape);
    const auto [dq, dk, dv] = PartsOf(m.outputs[0], shape);
    return Backward{.gradients = {dq, dk, dv},
                    .dy = m.inputs[0],
                    .y = m.inputs[2],
                    .lse = Floats(m.inputs[3]),
                    .inputs = {q, k, v, mask.In(m)}};
  });
}

}  // namespace

void AddSequenceKernels(CudaKernelTable& table) {
  table["Attention"] = PlanAttention;
  table["AttentionGrad"] = PlanAttentionGrad;
  table["SelfAttention"] = PlanSelfAttention;
  table["SelfAttentionGrad"] = PlanSelfAttentionGrad;
}

}  // namespace muster
