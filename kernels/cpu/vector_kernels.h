// The inner loops that are compiled once per instruction set.
#pragma once

#include <cstdint>

namespace muster::kernels {

struct SoftmaxSums {
  float max;  // of the scaled inputs
  float sum;  // of exp(scaled input - max)
};

// Outputs may be inputs of the same shape unless a line says otherwise. See the public headers for
// the meaning.
struct VectorKernels {
  void (*relu)(float* y, const float* x, int64_t n);
  void (*relu_grad)(float* dx, const float* dy, const float* y, int64_t n);
  void (*gelu)(float* y, const float* x, int64_t n);
  void (*gelu_grad)(float* dx, const float* dy, const float* x, int64_t n);
  void (*add)(float* y, const float* a, const float* b, int64_t n);
  void (*scale)(float* y, const float* x, float factor, int64_t n);
  float (*sum)(const float* x, int64_t n);
  void (*sum_rows)(float* sum, const float* x, int64_t rows, int64_t n);  // sum is not x
  // One row: p = softmax(scale x), scale > 0, n >= 1.
  SoftmaxSums (*softmax)(float* p, const float* x, float scale, int64_t n);
  // One row: dx = scale p (dp - sum of p dp), the derivative of softmax(scale x).
  void (*softmax_grad)(float* dx, const float* p, const float* dp, float scale, int64_t n);
  // One row of layer normalisation.
  void (*layer_norm)(float* y, float* mean, float* rstd, const float* x, const float* gain,
                     const float* bias, float epsilon, int64_t n);
  void (*layer_norm_grad_input)(float* dx, const float* dy, const float* x, const float* gain,
                                float mean, float rstd, int64_t n);
  // One row, added to dgain and dbias.
  void (*layer_norm_grad_parameters)(float* dgain, float* dbias, const float* dy, const float* x,
                                     float mean, float rstd, int64_t n);
};

// Those of DetectSimdLevel().
const VectorKernels& Vectors();

}  // namespace muster::kernels
