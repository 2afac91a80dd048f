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
  int devices = 1;   // that have parts of one batch, see BatchNormSums

  int64_t state_floats() const { return channels; }
};

enum class BatchNormActivation { kNone, kRelu };

int64_t BatchNormWorkspaceBytes(const BatchNormShape& shape);

// If several devices normalise parts of one batch together, each computes the sums of its part,
// gathers those of all devices, and continues with the merged sums. They are merged in the order of
// the devices. In one pass all calls have the same workspace, and nothing else writes it.
//
//   BatchNormMoments(x, ...);            BatchNormGradSums(dy, x, ...);
//   gather, unless devices is 1          gather, unless devices is 1
//   BatchNormApply(outputs, ...);        BatchNormGradApply(gradients, ...);
struct BatchNormSums {
  double* own;  // f64[size], of this device
  double* all;  // f64[devices, size], for BatchNormApply() and BatchNormGradApply(); may be `own`
  int64_t size;
};
BatchNormSums BatchNormSumsIn(const BatchNormShape& shape, std::byte* workspace);

struct BatchNormOutputs {
  float* y;         // may be x
  float* mean;      // of the batch
  float* rstd;      // 1 / sqrt(biased variance + epsilon)
  float* variance;  // unbiased; 0 for a single value
  float* state;     // f32[state_floats()], for BatchNormGrad
};

// y = activation((x - mean) rstd gain + bias). Both functions read x once, and one writes y:
// bandwidth-bound.
void BatchNormMoments(const float* x, const BatchNormShape& shape, std::byte* workspace);
void BatchNormApply(const BatchNormOutputs& outputs, const float* x, const float* bias,
                    const float* gain, float epsilon, const BatchNormShape& shape,
                    BatchNormActivation activation, std::byte* workspace);

struct BatchNormGradients {
  float* dx;     // may be dy or x
  float* dbias;  // of this device's part
  float* dgain;  // of this device's part; or null
};

// The derivatives. Both functions read dy and x once, and one writes dx: bandwidth-bound.
void BatchNormGradSums(const float* dy, const float* x, const float* mean, const float* rstd,
                       const float* state, const float* gain, const BatchNormShape& shape,
                       BatchNormActivation activation, std::byte* workspace);
void BatchNormGradApply(const BatchNormGradients& gradients, const float* dy, const float* x,
                        const float* rstd, const BatchNormShape& shape,
                        BatchNormActivation activation, std::byte* workspace);

// y = (x - mean) / sqrt(variance + epsilon) gain + bias with the running values. y may be x.
void BatchNormInference(float* y, const float* x, const float* mean, const float* variance,
                        const float* bias, const float* gain, float epsilon,
                        const BatchNormShape& shape, std::byte* workspace);

}  // namespace muster::kernels
