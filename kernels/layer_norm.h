// Layer normalisation over the last dimension and its derivatives: R rows of C channels, row-major
// f32, in parallel. Each reads its inputs once from memory and writes its outputs once:
// bandwidth-bound.
//   Source: Ba, Kiros, Hinton, "Layer normalization", arXiv:1607.06450.
#pragma once

#include <cstdint>

namespace muster::kernels {

struct LayerNormShape {
  int64_t rows;      // R
  int64_t channels;  // C
};

// y[R, C] = (x - mean) rstd gain[C] + bias[C], rstd = 1 / sqrt(variance + epsilon), variance over C
// (biased). A null bias is zero.
//
//   mean, rstd   f32[R], written for the backward pass
//   y            may be x
void LayerNorm(float* y, float* mean, float* rstd, const float* x, const float* gain,
               const float* bias, float epsilon, LayerNormShape shape);

// sum[R, C] = a + b, and y is its LayerNorm. `sum` may be a or b; y overlaps none of them.
void AddLayerNorm(float* y, float* mean, float* rstd, float* sum, const float* a, const float* b,
                  const float* gain, const float* bias, float epsilon, LayerNormShape shape);

// The derivative by x. dx may be dy or x.
void LayerNormGradInput(float* dx, const float* dy, const float* x, const float* gain,
                        const float* mean, const float* rstd, LayerNormShape shape);

// dgain[C], dbias[C]: sums over the rows of dy (x - mean) rstd and of dy. A null dbias is not
// computed.
void LayerNormGradParameters(float* dgain, float* dbias, const float* dy, const float* x,
                             const float* mean, const float* rstd, LayerNormShape shape);

}  // namespace muster::kernels
