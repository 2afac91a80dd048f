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
  int devices = 1;  // that have parts of one batch, see BatchNormSums
};

int64_t BatchNormStateBytes(const BatchNormShape& shape);
int64_t BatchNormWorkspaceBytes(const BatchNormShape& shape);

// If several devices normalise parts of one batch together, each enqueues the sums of its part,
// gathers those of all devices, and continues with the merged sums. They are merged in the order of
// the devices, in f64. In one pass all calls have the same workspace, and nothing else writes it.
//
//   BatchNormMoments(x, ...);            BatchNormGradSums(gradients, dy, ...);
//   gather, unless devices is 1          gather, unless devices is 1
//   BatchNormApply(outputs, ...);        BatchNormGradApply(gradients, dy, ...);
struct BatchNormSums {
  double* own;  // f64[size], of this device
  double* all;  // f64[devices, size], for BatchNormApply() and BatchNormGradApply()
  int64_t size;
};
// Requires: devices > 1.
BatchNormSums BatchNormSumsIn(const BatchNormShape& shape, void* workspace);

struct BatchNormOutputs {
  void* y;
  float* mean;
  float* rstd;      // 1 / sqrt(biased variance + epsilon)
  float* variance;  // unbiased
  void* state;  // factor and summand of each channel: relu's gradient needs the sign of its input
};

// y = activation(normalised x + addend). `addend` is T[B, C, S] or null. y may be x or the addend.
// Both functions read x; the second one reads the addend and writes y.
cudaError_t BatchNormMoments(const void* x, const BatchNormShape& shape, void* workspace,
                             cudaStream_t stream);
cudaError_t BatchNormApply(const BatchNormOutputs& outputs, const void* x, const void* addend,
                           const void* bias, const void* gain, float epsilon,
                           const BatchNormShape& shape, void* workspace, cudaStream_t stream);

struct BatchNormGradients {
  void* dx;       // may be dy or x
  void* dbias;    // of this device's part
  void* dgain;    // of this device's part; or null
  void* daddend;  // null: there was no addend. Must not be dy
};

// dx = a g + b x + c with a, b and c of the channel. g is dy where the activation passes it, else
// 0. Both functions read dy and x, and the second one writes dx.
//
// If there was an addend, the activation is relu, and y is its output. The sign of y shows where
// relu was active. Otherwise y is null. The gradient of the output is dy, or dy + dy_second if
// dy_second is not null. With an addend the first function reads dy, dy_second, y and x and writes
// g into daddend, and the second one reads g and x and writes dx.
cudaError_t BatchNormGradSums(const BatchNormGradients& gradients, const void* dy,
                              const void* dy_second, const void* x, const void* y,
                              const float* mean, const void* state, const BatchNormShape& shape,
                              void* workspace, cudaStream_t stream);
cudaError_t BatchNormGradApply(const BatchNormGradients& gradients, const void* dy, const void* x,
                               const float* mean, const float* rstd, const void* state,
                               const BatchNormShape& shape, void* workspace, cudaStream_t stream);

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
