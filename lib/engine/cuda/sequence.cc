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

// Of q[B, T, C], k[B, S, C], v[B, S, D].
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

// Of qkv[B, T, 3C].
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

// q, k and v, or their gradients, in qkv.
struct Parts {
  std::byte *q, *k, *v;
};

Parts PartsOf(std::byte* qkv, const cuda::AttentionShape& shape) {
  const int64_t bytes = shape.q_row / 3 * cuda::Bytes(shape.type);
  return {qkv, qkv + bytes, qkv + 2 * bytes};
}

// The optional input `i`, f32 of dimensions that are those of the scores or 1.
class Mask {
 public:
  Mask(const CudaNode& node, int i) : input_(i) {
    if (i >= static_cast<int>(node.inputs.size())) return;
    const Shape& shape = node.shape(i);  // [B or 1, H or 1, T or 1, S]
    const int64_t of_head = shape[2] * shape[3], of_sample = shape[1] * of_head;
    strides_ = {.batch_stride = shape[0] == 1 ? 0 : of_sample,
                .head_stride = shape[1] == 1 ? 0 : of_head,
                .query_stride = shape[2] == 1 ? 0 : shape[3]};
  }

  cuda::AttentionMask In(const NodeMemory& m) const {
    cuda::AttentionMask mask = strides_;
    if (std::byte* data = OptionalInput(m, input_)) mask.data = Floats(data);
    return mask;
  }

 private:
  int input_;
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

absl::StatusOr<PlannedNode> PlanAttention(const CudaNode& node) {
  const auto shape = AttentionShapeOf(node, node.shape(0), node.shape(1), node.shape(2));
  RETURN_IF_ERROR(CheckHeads(shape));
  return PlannedNode{.prepare = Enqueue([shape, mask = Mask(node, 3),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::Attention(m.outputs[0], Floats(m.outputs[1]),
                                              {m.inputs[0], m.inputs[1], m.inputs[2], mask.In(m)},
                                              shape, stream);
                     })};
}

// Of dy, q, k, v, y, lse, mask?
absl::StatusOr<PlannedNode> PlanAttentionGrad(const CudaNode& node) {
  const auto shape = AttentionShapeOf(node, node.shape(1), node.shape(2), node.shape(3));
  return PlannedNode{.workspace_bytes = WorkspaceBytes(shape),
                     .prepare = Enqueue([shape, mask = Mask(node, 6),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::AttentionGrad(
                           {m.outputs[0], m.outputs[1], m.outputs[2]}, m.inputs[0], m.inputs[4],
                           Floats(m.inputs[5]), {m.inputs[1], m.inputs[2], m.inputs[3], mask.In(m)},
                           shape, Floats(m.workspace), stream);
                     })};
}

absl::StatusOr<PlannedNode> PlanSelfAttention(const CudaNode& node) {
  const auto shape = SelfAttentionShapeOf(node, node.shape(0));
  RETURN_IF_ERROR(CheckHeads(shape));
  return PlannedNode{.prepare = Enqueue([shape, mask = Mask(node, 1),
                                         stream = node.context.stream](const NodeMemory& m) {
                       const auto [q, k, v] = PartsOf(m.inputs[0], shape);
                       return cuda::Attention(m.outputs[0], Floats(m.outputs[1]),
                                              {q, k, v, mask.In(m)}, shape, stream);
                     })};
}

// Of dy, qkv, y, lse, mask?
absl::StatusOr<PlannedNode> PlanSelfAttentionGrad(const CudaNode& node) {
  const auto shape = SelfAttentionShapeOf(node, node.shape(1));
  return PlannedNode{
      .workspace_bytes = WorkspaceBytes(shape),
      .prepare =
          Enqueue([shape, mask = Mask(node, 4), stream = node.context.stream](const NodeMemory& m) {
            const auto [q, k, v] = PartsOf(m.inputs[1], shape);
            const auto [dq, dk, dv] = PartsOf(m.outputs[0], shape);
            return cuda::AttentionGrad({dq, dk, dv}, m.inputs[0], m.inputs[2], Floats(m.inputs[3]),
                                       {q, k, v, mask.In(m)}, shape, Floats(m.workspace), stream);
          })};
}

}  // namespace

void AddSequenceKernels(CudaKernelTable& table) {
  table["Attention"] = PlanAttention;
  table["AttentionGrad"] = PlanAttentionGrad;
  table["SelfAttention"] = PlanSelfAttention;
  table["SelfAttentionGrad"] = PlanSelfAttentionGrad;
}

}  // namespace muster
