// Normalises rows, and computes the derivatives. CUDA twins of kernels/layer_norm.h and rms_norm.h.
//
//   x, y, dy, dx   T[R, C]      gain, bias, dgain, dbias   T[C]      mean, rstd   f32[R]
//
// Device memory, 16-byte aligned. Asynchronous on `stream`. Returns the launch error, if any. Sums
// are in f32. A warp takes a row and keeps it in registers. A longer row (over 1,536 channels of 16
// bits, 768 of f32) is read again from the cache. Bandwidth-bound.
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
  float* mean;  // null: RmsNorm, which subtracts no mean
  float* rstd;  // 1 / sqrt(variance + epsilon); RmsNorm: of the mean square
  void* sum;    // with `addend`: x + addend, which is then normalised
  const void* x;
  const void* addend;  // or null
  const void* gain;
  const void* bias;  // or null
  float epsilon;
};
cudaError_t LayerNorm(const LayerNormArguments& arguments, NormRows shape, cudaStream_t stream);

// The derivative by x. mean is null for RmsNorm. dx may be dy.
cudaError_t LayerNormGradInput(void* dx, const void* dy, const void* x, const void* gain,
                               const float* mean, const float* rstd, NormRows shape,
                               cudaStream_t stream);

// The derivatives by gain and bias. dbias may be null; mean is null for RmsNorm. The order of sums
// is fixed: rows are added within each part of the rows, then the parts are added.
int64_t LayerNormGradParametersWorkspaceBytes(NormRows shape);
cudaError_t LayerNormGradParameters(void* dgain, void* dbias, const void* dy, const void* x,
                                    const float* mean, const float* rstd, NormRows shape,
                                    void* workspace, cudaStream_t stream);

// Both gradients in one pass. Either dsum is added to dx, or dy is the sum dy + dy_second; not
// both. dx may be dy, dy_second or dsum and, with dsum, x.
//
// If rows are whole vectors that fit a warp's registers (1,536 channels of 16 bits, 768 of f32),
// every tensor is read once, dx is written once, and sums of two are not rounded. For other rows
// the kernels run one after another, and dy + dy_second is rounded. The order of the parameters'
// sums is the same on all devices.
struct LayerNormGradArguments {
  void* dx;
  void* dgain;
  void* dbias;  // or null
  const void* dy;
  const void* dy_second = nullptr;
  const void* dsum = nullptr;
  const void* x;
  const void* gain;
  const float* mean;
  const float* rstd;
};
int64_t LayerNormGradWorkspaceBytes(NormRows shape);
cudaError_t LayerNormGrad(const LayerNormGradArguments& arguments, NormRows shape, void* workspace,
                          cudaStream_t stream);

}  // namespace muster::kernels::cuda
