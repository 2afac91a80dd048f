// Activations and their derivatives over n elements, f32. Each output may be one of the inputs. n
// == 0 is a no-op.
#pragma once

#include <cstdint>

namespace muster::kernels {

// y = max(x, 0). NaN stays NaN, so that a diverged model is seen.
void Relu(float* y, const float* x, int64_t n);

// dx = dy where y > 0, else 0.
void ReluGrad(float* dx, const float* dy, const float* y, int64_t n);

// y = 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x³), computed as x / (1 + exp(-2u)): a few
// ulp at any x.
//   Source: Hendrycks, Gimpel, "Gaussian error linear units", arXiv:1606.08415.
void Gelu(float* y, const float* x, int64_t n);

void GeluGrad(float* dx, const float* dy, const float* x, int64_t n);

}  // namespace muster::kernels
