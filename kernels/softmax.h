// Softmax and its logarithm over the last dimension and their derivatives: R rows of V, row-major
// f32, in parallel, bandwidth-bound. An output may be any input.
#pragma once

#include <cstdint>

namespace muster::kernels {

struct SoftmaxShape {
  int64_t rows;     // R
  int64_t classes;  // V
};

void Softmax(float* y, const float* x, SoftmaxShape shape);
void LogSoftmax(float* y, const float* x, SoftmaxShape shape);

// Computed from the function's value y: dx = y (dy - sum of y dy) for Softmax, and dx = dy - exp(y)
// sum of dy for LogSoftmax.
void SoftmaxGrad(float* dx, const float* dy, const float* y, SoftmaxShape shape);
void LogSoftmaxGrad(float* dx, const float* dy, const float* y, SoftmaxShape shape);

}  // namespace muster::kernels
