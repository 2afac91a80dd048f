// Normalises each channel over batch and pixels, and computes the derivatives. CUDA twins of
// kernels/batch_norm.h.
//
//   x, y, dx, dy                          T[B, C, S], or T[B, S, C] where channels are last
//   bias, gain, dbias, dgain              T[C]; null gain: ones
//   mean, rstd, variance, running values  f32[C]
//   state                                 f32[2 C]
//
// Device memory, 16-byte aligned. Asynchronous on `stream`. Returns the launch error, if any. Sums
// are f32 with a fixed order. Bandwidth-bound; fastest with channels last.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

enum class ChannelOrder { kFirst, kLast };
enum class BatchNormActivation { kNone, kRelu };

struct BatchNormShape {
  int64_t batch;     // B
  int64_t channels;  // C
  int64_t pixels;    // S
  ChannelOrder order;
  Type type;  // T
  BatchNormActivation activation = BatchNormActivation::kNone;
};

int64_t BatchNormStateBytes(const BatchNormShape& shape);
int64_t BatchNormWorkspaceBytes(const BatchNormShape& shape);

struct BatchNormOutputs {
  void* y;
  float* mean;
  float* rstd;      // 1 / sqrt(biased variance + epsilon)
  float* variance;  // unbiased
  void* state;  // factor and summand of each channel: relu's gradient needs the sign of its input
};

// y = activation(normalised x + addend). `addend` is T[B, C, S] or null. y may be x or the addend.
// Reads x twice and the addend once, writes y.
cudaError_t BatchNorm(const BatchNormOutputs& outputs, const void* x, const void* addend,
                      const void* bias, const void* gain, float epsilon,
                      const BatchNormShape& shape, void* workspace, cudaStream_t stream);

struct BatchNormGradients {
  void* dx;  // may be dy or x
  void* dbias;
  void* dgain;    // or null
  void* daddend;  // null: there was no addend. Must not be dy
};

// dx = a g + b x + c with a, b and c of the channel. g is dy where the activation passes it, else
// 0. Reads dy and x twice and writes dx.
//
// If there was an addend, the activation is relu, and y is its output, whose sign shows where relu
// was active. Otherwise y is null. The gradient of the output is dy, or dy + dy_second if dy_second
// is not null. With an addend the function reads dy, dy_second, y and x, writes g (into daddend),
// reads g and x again, and writes dx.
cudaError_t BatchNormGrad(const BatchNormGradients& gradients, const void* dy,
                          const void* dy_second, const void* x, const void* y, const float* mean,
                          const float* rstd, const void* state, const BatchNormShape& shape,
                          void* workspace, cudaStream_t stream);

// Normalises by the running values. y may be x.
cudaError_t BatchNormInference(void* y, const void* x, const float* running_mean,
                               const float* running_variance, const void* bias, const void* gain,
                               float epsilon, const BatchNormShape& shape, void* workspace,
                               cudaStream_t stream);

// y = x + the channel's bias, then relu if the shape says so. y may be x.
cudaError_t AddChannelBias(void* y, const void* x, const void* bias, const BatchNormShape& shape,
                           void* workspace, cudaStream_t stream);

// dbias T[C] = the sums of dy over batch and pixels.
cudaError_t SumChannelBias(void* dbias, const void* dy, const BatchNormShape& shape,
                           void* workspace, cudaStream_t stream);

}  // namespace muster::kernels::cuda
