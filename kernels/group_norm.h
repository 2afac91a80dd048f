// Normalisation of groups of channels of each sample and its derivatives. Row-major f32[B, C, P], P
// positions, in parallel, bandwidth-bound.
//   Source: Wu, He, "Group normalization", ECCV 2018.
#pragma once

#include <cstdint>

namespace muster::kernels {

struct GroupNormShape {
  int64_t batch;      // B
  int64_t channels;   // C
  int64_t positions;  // P
  int64_t groups;     // G, divides C
};

// y = (x - mean) rstd gain[C] + bias[C]; mean and rstd f32[B, G] over the C / G channels of a group
// and their positions (biased variance). y may be x.
void GroupNorm(float* y, float* mean, float* rstd, const float* x, const float* gain,
               const float* bias, float epsilon, const GroupNormShape& shape);

// The derivative by x. dx may be dy or x.
void GroupNormGradInput(float* dx, const float* dy, const float* x, const float* gain,
                        const float* mean, const float* rstd, const GroupNormShape& shape);

// dgain[C], dbias[C]: sums over batch and positions of dy (x - mean) rstd and of dy.
void GroupNormGradParameters(float* dgain, float* dbias, const float* dy, const float* x,
                             const float* mean, const float* rstd, const GroupNormShape& shape);

}  // namespace muster::kernels
