// Squared error over n elements, f32, in parallel, bandwidth-bound.
#pragma once

#include <cstdint>

namespace muster::kernels {

// *loss = factor times the sum of (prediction - target)²: the mean, with factor 1 / n. Blocks of
// floats, added in double, in an order that depends on n alone.
void MeanSquaredError(float* loss, const float* prediction, const float* target, float factor,
                      int64_t n);

// dprediction = 2 factor (prediction - target). dprediction may be one of the inputs.
void MeanSquaredErrorGrad(float* dprediction, const float* prediction, const float* target,
                          float factor, int64_t n);

}  // namespace muster::kernels
