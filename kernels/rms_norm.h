// Normalisation by the root of the mean square and its derivatives: R rows of C channels, row-major
// f32, in parallel, bandwidth-bound.
//   Source: Zhang, Sennrich, "Root mean square layer normalization", NeurIPS 2019.
#pragma once

#include <cstdint>

namespace muster::kernels {

struct RmsNormShape {
  int64_t rows;      // R
  int64_t channels;  // C
};

// y[R, C] = x rstd gain[C], rstd[R] = 1 / sqrt(mean of x² + epsilon). y may be x.
void RmsNorm(float* y, float* rstd, const float* x, const float* gain, float epsilon,
             RmsNormShape shape);

// The derivative by x. dx may be dy or x.
void RmsNormGradInput(float* dx, const float* dy, const float* x, const float* gain,
                      const float* rstd, RmsNormShape shape);

// dgain[C] = sum over the rows of dy x rstd.
void RmsNormGradGain(float* dgain, const float* dy, const float* x, const float* rstd,
                     RmsNormShape shape);

}  // namespace muster::kernels
