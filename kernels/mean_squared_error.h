// Squared error over n elements, f32, in parallel, bandwidth-bound.
#pragma once

#include <cstdint>

namespace muster::kernels {

// *loss = factor times the sum of (prediction - target)²: the mean if factor is 1 / n. Blocks of
// floats are added in double, in an order that depends only on n and the instruction set.
void MeanSquaredError(float* loss, const float* prediction, const float* target, float factor,
                      int64_t n);

// dprediction = 2 factor (prediction - target). dprediction may be one of the inputs.
void MeanSquaredErrorGrad(float* dprediction, const float* prediction, const float* target,
                          float factor, int64_t n);

}  // namespace muster::kernels
