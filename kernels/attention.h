// Causal multi-head self-attention and its derivative. Row-major f32; no buffer aliases another.
//
//   qkv, dqkv       f32[B, T, 3C]: q, k and v side by side, heads contiguous inside each
//   y, dy           f32[B, T, C]
//   probabilities   f32[B, H, T, T]: row t holds the weights of positions 0..t, then zeros
#pragma once

#include <algorithm>
#include <cstdint>

namespace muster::kernels {

struct AttentionShape {
  int64_t batch;     // B
  int64_t context;   // T
  int64_t channels;  // C
  int64_t heads;     // H, divides C

  int64_t head_channels() const { return channels / heads; }
  // Queries are taken in blocks of this many rows, so that about half of the products above the
  // diagonal are skipped.
  int64_t block() const { return std::min<int64_t>(context, 64); }
  int64_t grad_workspace_floats() const { return block() * context; }
};

// y = softmax(q kᵀ / sqrt(C / H), causal) v for each head.
void CausalAttention(float* y, float* probabilities, const float* qkv, const AttentionShape& shape);

// `workspace` is f32[shape.grad_workspace_floats()], scratch.
void CausalAttentionGrad(float* dqkv, const float* dy, const float* qkv, const float* probabilities,
                         float* workspace, const AttentionShape& shape);

}  // namespace muster::kernels
