// Normalisation of rows and its derivatives: CUDA twins of kernels/layer_norm.h and rms_norm.h.
//
//   x, y, dy, dx   T[R, C]      gain, bias, dgain, dbias   T[C]      mean, rstd   f32[R]
//
// Device memory, 16-byte aligned. Asynchronous on `stream`; the launch error, if any, is returned.
// Sums are in f32. A warp takes a row: it reads it from memory once and again from the cache:
// bandwidth-bound.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

struct NormRows {
  int64_t rows;      // R
  int64_t channels;  // C
  Type type;         // T
};

struct LayerNormArguments {
  void* y;
  float* mean;  // null: RmsNorm, nothing is subtracted
  float* rstd;  // 1 / sqrt(variance + epsilon), or of the mean square
  void* sum;    // with `addend`: x + addend, which is then what is normalised
  const void* x;
  const void* addend;  // or null
  const void* gain;
  const void* bias;  // or null
  float epsilon;
};
cudaError_t LayerNorm(const LayerNormArguments& arguments, NormRows shape, cudaStream_t stream);

// mean is null for RmsNorm. dx may be dy.
cudaError_t LayerNormGradInput(void* dx, const void* dy, const void* x, const void* gain,
                               const float* mean, const float* rstd, NormRows shape,
                               cudaStream_t stream);

// dbias may be null; mean is null for RmsNorm. In one order: parts of the rows, then the parts.
int64_t LayerNormGradParametersWorkspaceBytes(NormRows shape);
cudaError_t LayerNormGradParameters(void* dgain, void* dbias, const void* dy, const void* x,
                                    const float* mean, const float* rstd, NormRows shape,
                                    void* workspace, cudaStream_t stream);

// Both, and dsum added to dx: every tensor is read once, dx is written once, and the sum is rounded
// once. dx may be dy, dsum or x. That is so for rows of whole vectors that fit a warp's registers
// (1,536 channels of 16 bits, 768 of f32); for others it is one kernel after the other. The order
// of the parameters' sums is the same on all devices.
struct AddLayerNormGradArguments {
  void* dx;
  void* dgain;
  void* dbias;  // or null
  const void* dy;
  const void* dsum;
  const void* x;
  const void* gain;
  const float* mean;
  const float* rstd;
};
int64_t AddLayerNormGradWorkspaceBytes(NormRows shape);
cudaError_t AddLayerNormGrad(const AddLayerNormGradArguments& arguments, NormRows shape,
                             void* workspace, cudaStream_t stream);

}  // namespace muster::kernels::cuda
