// Normalisation of each channel over batch and pixels, and its derivatives, f32.
//   Source: Ioffe, Szegedy, "Batch normalization", arXiv:1502.03167.
//
//   x, y, dx, dy          [B, C, pixels], all in one layout
//   mean, rstd, gain...   [C]
//   gain                  null means ones
//
// The results are the same for any number of threads. `workspace` is scratch memory of
// BatchNormWorkspaceBytes() bytes, 64-byte aligned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/layout.h"

namespace muster::kernels {

struct BatchNormShape {
  int64_t batch;     // B
  int64_t channels;  // C
  int64_t pixels;    // 1 for x[B, C]
  Layout layout;     // of x, y, dx and dy; row-major unless x is an image

  int64_t state_floats() const { return channels; }
};

enum class BatchNormActivation { kNone, kRelu };

int64_t BatchNormWorkspaceBytes(const BatchNormShape& shape);

struct BatchNormOutputs {
  float* y;         // may be x
  float* mean;      // of the batch
  float* rstd;      // 1 / sqrt(biased variance + epsilon)
  float* variance;  // unbiased; 0 for a single value
  float* state;     // f32[state_floats()], for BatchNormGrad
};

// y = activation((x - mean) rstd gain + bias). Reads x twice, writes y once: bandwidth-bound.
void BatchNorm(const BatchNormOutputs& outputs, const float* x, const float* bias,
               const float* gain, float epsilon, const BatchNormShape& shape,
               BatchNormActivation activation, std::byte* workspace);

struct BatchNormGradients {
  float* dx;  // may be dy or x
  float* dbias;
  float* dgain;  // or null
};

// The derivatives of BatchNorm(). Reads dy and x twice, writes dx once: bandwidth-bound.
void BatchNormGrad(const BatchNormGradients& gradients, const float* dy, const float* x,
                   const float* mean, const float* rstd, const float* state, const float* gain,
                   const BatchNormShape& shape, BatchNormActivation activation,
                   std::byte* workspace);

// y = (x - mean) / sqrt(variance + epsilon) gain + bias with the running values. y may be x.
void BatchNormInference(float* y, const float* x, const float* mean, const float* variance,
                        const float* bias, const float* gain, float epsilon,
                        const BatchNormShape& shape, std::byte* workspace);

}  // namespace muster::kernels
