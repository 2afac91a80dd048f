// Normalises groups of channels, and computes the derivatives. CUDA twins of kernels/group_norm.h.
//
//   x, y, dy, dx   T[B, C, S]      gain, bias, dgain, dbias   T[C]      mean, rstd   f32[B, G]
//
// Device memory, row-major. Asynchronous on `stream`. Returns the launch error, if any. A block
// takes a group (for the gradients of parameters: a channel). It reads the group from memory once
// and again from the cache: bandwidth-bound.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

struct GroupNormShape {
  int64_t batch;     // B
  int64_t channels;  // C
  int64_t pixels;    // S
  int64_t groups;    // G, divides C
  Type type;         // T
};

cudaError_t GroupNorm(void* y, float* mean, float* rstd, const void* x, const void* gain,
                      const void* bias, float epsilon, const GroupNormShape& shape,
                      cudaStream_t stream);

cudaError_t GroupNormGradInput(void* dx, const void* dy, const void* x, const void* gain,
                               const float* mean, const float* rstd, const GroupNormShape& shape,
                               cudaStream_t stream);

cudaError_t GroupNormGradParameters(void* dgain, void* dbias, const void* dy, const void* x,
                                    const float* mean, const float* rstd,
                                    const GroupNormShape& shape, cudaStream_t stream);

}  // namespace muster::kernels::cuda
