// Mean squared error over n >= 1 elements, f32.
#pragma once

#include <cstdint>

namespace muster::kernels {

// *loss = mean of (prediction - target)².
void MeanSquaredError(float* loss, const float* prediction, const float* target, int64_t n);

// dprediction = loss_scale 2 (prediction - target) / n. dprediction may be one of the inputs.
void MeanSquaredErrorGrad(float* dprediction, const float* prediction, const float* target,
                          float loss_scale, int64_t n);

}  // namespace muster::kernels
