#include "kernels/activation.h"

#include "kernels/cpu/vector_kernels.h"

namespace muster::kernels {

void Relu(float* y, const float* x, int64_t n) { Vectors().relu(y, x, n); }

void ReluGrad(float* dx, const float* dy, const float* y, int64_t n) {
  Vectors().relu_grad(dx, dy, y, n);
}

void Gelu(float* y, const float* x, int64_t n) { Vectors().gelu(y, x, n); }

void GeluGrad(float* dx, const float* dy, const float* x, int64_t n) {
  Vectors().gelu_grad(dx, dy, x, n);
}

}  // namespace muster::kernels
