// The loops of softmax.h and the losses, once per instruction set.
#pragma once

#include <cstdint>

namespace muster::kernels {

// The sum of exp(x - top), where `top` is the largest x; 0 if that is -infinity.
struct ExpSum {
  double top;
  double sum;
};

// Each loop computes one row; outputs may be inputs. Sums are blocks of floats, added in double.
struct SoftmaxLoops {
  void (*softmax)(float* y, const float* x, int64_t n);
  void (*softmax_grad)(float* dx, const float* dy, const float* y, int64_t n);
  void (*log_softmax_grad)(float* dx, const float* dy, const float* y, int64_t n);
  // Returns the log of the sum of exp(x).
  float (*log_sum_exp)(const float* x, int64_t n);
  ExpSum (*sum_exp)(const float* x, int64_t n);
  // y = x - center.
  void (*subtract)(float* y, const float* x, float center, int64_t n);
  // y = factor exp(x - center) - offset.
  void (*scaled_exp)(float* y, const float* x, float center, float factor, float offset, int64_t n);

  double (*sigmoid_cross_entropy)(const float* logits, const float* target, int64_t n);
  void (*sigmoid_cross_entropy_grad)(float* dlogits, const float* logits, const float* target,
                                     float factor, int64_t n);
  double (*squared_error)(const float* prediction, const float* target, int64_t n);
  // y = factor (a - b).
  void (*scaled_difference)(float* y, const float* a, const float* b, float factor, int64_t n);
};

namespace baseline {
extern const SoftmaxLoops kSoftmaxLoops;
}
namespace avx2 {
extern const SoftmaxLoops kSoftmaxLoops;
}
namespace avx512 {
extern const SoftmaxLoops kSoftmaxLoops;
}

}  // namespace muster::kernels
