// Multi-head attention and its derivative. They work on blocks of queries and keys that stay in the
// cache, so no matrix of all scores is stored. Row-major f32, in parallel. No buffer aliases
// another. Results do not depend on the number of threads.
//   Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention", NeurIPS 2022 (the blocks and what is
//   recomputed).
//
// Bound by matrix products: 2 B T S (C + D) operations forward (half of them if causal and T == S),
// and 2.5 times as many backward.
#pragma once

#include <cstdint>

#include "kernels/dimensions.h"

namespace muster::kernels {

struct AttentionShape {
  int64_t batch;     // B
  int64_t queries;   // T
  int64_t keys;      // S
  int64_t heads;     // H, divides C and D
  int64_t channels;  // C of q and k
  int64_t values;    // D, channels of v and y
  bool causal;       // query t sees keys up to t + S - T
  float scale;       // factor of the scores, usually 1 / sqrt(C / H)
};

// A mask f32[B or 1, H or 1, T or 1, S] that is added to the scores. Dimensions of 1 repeat. Null
// `data` means no mask.
struct AttentionMask {
  AttentionMask() = default;
  AttentionMask(const float* data, Dimensions dimensions);  // four dimensions

  const float* data = nullptr;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t query_stride = 0;
};

// y f32[B, T, D] = softmax(scale q kᵀ + mask, causal) v for each head, whose channels are
// contiguous in q f32[B, T, C], k f32[B, S, C], v f32[B, S, D]. lse f32[B, H, T]: log of the sum of
// the exp of the scores. A query that sees no key (causal with S < T, or a mask of -inf) has y = 0,
// lse = -inf and passes no gradient.
void Attention(float* y, float* lse, const float* q, const float* k, const float* v,
               const AttentionMask& mask, const AttentionShape& shape);

void AttentionGrad(float* dq, float* dk, float* dv, const float* dy, const float* q, const float* k,
                   const float* v, const float* y, const float* lse, const AttentionMask& mask,
                   const AttentionShape& shape);

// Attention of qkv f32[B, T, 3C], which holds q, k and v side by side. Requires: queries == keys
// and values == channels.
void SelfAttention(float* y, float* lse, const float* qkv, const AttentionMask& mask,
                   const AttentionShape& shape);

void SelfAttentionGrad(float* dqkv, const float* dy, const float* qkv, const float* y,
                       const float* lse, const AttentionMask& mask, const AttentionShape& shape);

}  // namespace muster::kernels
