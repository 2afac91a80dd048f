// The loops of layer_norm.h, rms_norm.h and group_norm.h, once per instruction set.
#pragma once

#include <cstdint>

namespace muster::kernels {

// Outputs may be inputs of the same shape. Sums add blocks in float, and the blocks' sums in
// double. `normal` is (x - mean) rstd, or x rstd in the functions for rms_norm.h.
struct NormLoops {
  struct Moments {
    float mean;
    float rstd;
  };

  // sum = a + b.
  void (*add)(float* sum, const float* a, const float* b, int64_t n);
  Moments (*moments)(const float* x, float epsilon, int64_t n);
  // y = (x - mean) rstd gain + bias, elementwise; a null bias is zero.
  void (*normalise)(float* y, const float* x, Moments moments, const float* gain, const float* bias,
                    int64_t n);
  // One row: dx = rstd (dy gain - mean(dy gain) - normal mean(dy gain normal)).
  void (*grad_input)(float* dx, const float* dy, const float* x, const float* gain, Moments moments,
                     int64_t n);
  // dgain += dy (x - mean) rstd; dbias += dy unless null.
  void (*add_grad_parameters)(float* dgain, float* dbias, const float* dy, const float* x,
                              Moments moments, int64_t n);

  float (*rms_rstd)(const float* x, float epsilon, int64_t n);
  // One row: dx = rstd (dy gain - normal mean(dy gain normal)).
  void (*rms_grad_input)(float* dx, const float* dy, const float* x, const float* gain, float rstd,
                         int64_t n);

  // y = factor (x - center) + offset.
  void (*shifted)(float* y, const float* x, float center, float factor, float offset, int64_t n);
  // dx = factor dy + slope (x - center) + offset.
  void (*grad_row)(float* dx, float factor, const float* dy, float slope, const float* x,
                   float center, float offset, int64_t n);
  // Return the sum of x, and the sum of x (z - center).
  double (*sum)(const float* x, int64_t n);
  double (*centered_dot)(const float* x, const float* z, float center, int64_t n);
};

namespace baseline {
extern const NormLoops kNormLoops;
}
namespace avx2 {
extern const NormLoops kNormLoops;
}
namespace avx512 {
extern const NormLoops kNormLoops;
}

}  // namespace muster::kernels
