// Masks for kernels of attention in which -inf minus -inf is not a number (fused_attention.h).
// Device memory; asynchronous on `stream`; the launch error, if any, is returned. Bound by memory,
// which is little.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/attention.h"

namespace muster::kernels::cuda {

// What -inf in a mask becomes, and what is less: any score is lost beside it in f32.
inline constexpr float kUnseenScore = -1e30f;

// `to`, `mask`: f32[elements].
cudaError_t MakeMaskFinite(float* to, const float* mask, int64_t elements, cudaStream_t stream);

// Of queries that see no key, known by an lse near kUnseenScore: y becomes 0, lse +inf, by which
// their keys have no weight in backward. y is of bf16 or f16, as in attention.h.
cudaError_t ClearUnseeingQueries(void* y, float* lse, const AttentionShape& shape,
                                 cudaStream_t stream);

}  // namespace muster::kernels::cuda
