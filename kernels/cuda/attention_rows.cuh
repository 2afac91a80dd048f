// Shared by the attention kernels: the addresses of rows and masks.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace muster::kernels::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// One head of one sample.
template <typename T>
struct Head {
  int batch, head;
  const T *q, *k, *v;
  const float* mask;   // null: none
  int64_t output;      // offset of its first row in y and dy, T[B, T, H, D]
  int64_t statistics;  // offset of its first number in lse

  __device__ Head(const AttentionInputs& inputs, const AttentionShape& shape, int64_t number)
      : batch(static_cast<int>(number / shape.heads)),
        head(static_cast<int>(number % shape.heads)) {
    q = static_cast<const T*>(inputs.q) + QueryOffset(shape);
    k = static_cast<const T*>(inputs.k) + KeyOffset(shape);
    v = static_cast<const T*>(inputs.v) + ValueOffset(shape);
    mask = inputs.mask.data;
    if (mask != nullptr) mask += batch * inputs.mask.batch_stride + head * inputs.mask.head_stride;
    output = (batch * shape.queries * shape.heads + head) * shape.head_values;
    statistics = (batch * shape.heads + head) * shape.queries;
  }

  __device__ int64_t QueryOffset(const AttentionShape& shape) const {
    return batch * shape.queries * shape.q_row + head * shape.head_channels;
  }
  __device__ int64_t KeyOffset(const AttentionShape& shape) const {
    return batch * shape.keys * shape.k_row + head * shape.head_channels;
  }
  __device__ int64_t ValueOffset(const AttentionShape& shape) const {
    return batch * shape.keys * shape.v_row + head * shape.head_values;
  }
};

__device__ inline int64_t OutputRow(const AttentionShape& shape) {
  return shape.heads * shape.head_values;
}

// Number of keys that query t sees, before any mask.
__device__ inline int64_t VisibleKeys(const AttentionShape& shape, int64_t t) {
  if (!shape.causal) return shape.keys;
  return min(max(t + shape.keys - shape.queries + 1, int64_t{0}), shape.keys);
}

// The first query that sees the key.
__device__ inline int64_t FirstQuery(const AttentionShape& shape, int64_t key) {
  return shape.causal ? max(key - (shape.keys - shape.queries), int64_t{0}) : 0;
}

// delta f32[B, H, T] = the sum of dy y over each row.
cudaError_t AttentionDelta(float* delta, const void* dy, const void* y, const AttentionShape& shape,
                           cudaStream_t stream);

// Computed on tensor cores. Requires: FitsTensorCores(shape).
bool FitsTensorCores(const AttentionShape& shape);
cudaError_t AttentionTiles(void* y, float* lse, const AttentionInputs& inputs,
                           const AttentionShape& shape, cudaStream_t stream);
cudaError_t AttentionGradTiles(const AttentionGradients& gradients, const void* dy,
                               const float* lse, const float* delta, const AttentionInputs& inputs,
                               const AttentionShape& shape, cudaStream_t stream);

}  // namespace muster::kernels::cuda
