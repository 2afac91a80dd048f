// Multi-head attention and its derivative, computed in tiles: the matrix of all scores is never
// stored. CUDA twins of kernels/attention.h.
//   Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention", NeurIPS 2022 (online softmax over tiles,
//   recomputation from lse); Dao, "FlashAttention-2", 2023 (queries split over warps).
//
//   q, dq   T[B, T, H, C]      k, dk   T[B, S, H, C]      v, dv   T[B, S, H, D]
//   y, dy   T[B, T, H, D]      lse     f32[B, H, T]       mask    f32, added to the scores
//
// Heads are contiguous in a row; rows of q, k and v may have gaps between them. Device memory,
// 16-byte aligned. Asynchronous on `stream`. Returns the launch error, if any. Every sum has a
// fixed order and needs no atomics: dq is computed by one kernel, dk and dv by another; each owns
// its rows and recomputes the scores. A query that sees no key has y = 0 and lse = -inf, and passes
// no gradient.
//
// bf16 and f16 run on tensor cores and are bound by them (attention_tiles.cu). That requires C, D
// <= 128, multiples of 8, a positive scale, and fewer than 2^31 elements in a sample. Other shapes
// use one warp per row and are bound by the cache.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

struct AttentionShape {
  int64_t batch;          // B
  int64_t queries;        // T
  int64_t keys;           // S
  int64_t heads;          // H
  int64_t head_channels;  // C, of q and k
  int64_t head_values;    // D, of v and y
  int64_t q_row;          // elements from one row of q (or dq) to the next
  int64_t k_row;
  int64_t v_row;
  bool causal;  // query t sees keys up to t + S - T
  float scale;  // of the scores
  Type type;

  bool operator==(const AttentionShape&) const = default;
};

inline constexpr int64_t kHeadMax = 512;  // limit of C and D

struct AttentionMask {
  const float* data = nullptr;  // null: none
  int64_t batch_stride = 0;     // 0 repeats; keys are contiguous
  int64_t head_stride = 0;
  int64_t query_stride = 0;
};

// The shape of a mask f32[batch, heads, queries, S] without gaps. Each size is 1 or the
// attention's.
struct AttentionMaskShape {
  int64_t batch = 0;  // 0: there is no mask
  int64_t heads = 0;
  int64_t queries = 0;

  bool operator==(const AttentionMaskShape&) const = default;
};

struct AttentionInputs {
  const void* q;
  const void* k;
  const void* v;
  AttentionMask mask;
};

cudaError_t Attention(void* y, float* lse, const AttentionInputs& inputs,
                      const AttentionShape& shape, cudaStream_t stream);

struct AttentionGradients {
  void* dq;
  void* dk;
  void* dv;
};

// `workspace`: f32[B, H, T].
cudaError_t AttentionGrad(const AttentionGradients& gradients, const void* dy, const void* y,
                          const float* lse, const AttentionInputs& inputs,
                          const AttentionShape& shape, float* workspace, cudaStream_t stream);

}  // namespace muster::kernels::cuda
