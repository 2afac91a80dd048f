// Prepares masks for attention kernels that compute -inf - -inf, which is NaN (fused_attention.h).
// Device memory. Asynchronous on `stream`. Returns the launch error, if any. Memory-bound, over
// little memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/attention.h"

namespace muster::kernels::cuda {

// Replaces -inf and every other mask value below it. A score that is added to it is lost in f32
// rounding.
inline constexpr float kUnseenScore = -1e30f;

// `to`, `mask`: f32[elements].
cudaError_t MakeMaskFinite(float* to, const float* mask, int64_t elements, cudaStream_t stream);

// Clears queries that see no key, which have an lse near kUnseenScore: y becomes 0. lse becomes
// +inf, which gives their keys no weight in backward. y is bf16 or f16, as in attention.h.
cudaError_t ClearUnseeingQueries(void* y, float* lse, const AttentionShape& shape,
                                 cudaStream_t stream);

}  // namespace muster::kernels::cuda
