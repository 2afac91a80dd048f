// The loops of activation.h, once per instruction set.
#pragma once

#include <cstdint>

namespace muster::kernels {

struct ActivationLoops {
  using Function = void(float* y, const float* x, int64_t n);
  using Derivative = void(float* dx, const float* dy, const float* saved, int64_t n);
  // Functions with constants. A constant that the function does not have is not read.
  using ShapedFunction = void(float* y, const float* x, float a, float b, int64_t n);
  using ShapedDerivative = void(float* dx, const float* dy, const float* saved, float a, float b,
                                int64_t n);

  Function* relu;
  Function* silu;
  Function* tanh;
  Function* sigmoid;
  Function* erf;
  Function* exp;
  Function* log;
  Function* sqrt;
  Function* neg;
  Function* gelu;
  Function* gelu_exact;
  Function* abs;
  Function* sin;
  Function* cos;
  Function* softplus;
  Function* floor;
  Function* ceil;
  Function* round;
  Function* sign;
  Function* is_nan;  // y is i32
  ShapedFunction* elu;
  ShapedFunction* leaky_relu;
  ShapedFunction* hard_sigmoid;
  ShapedFunction* clip;
  Derivative* relu_grad;
  Derivative* tanh_grad;
  Derivative* sigmoid_grad;
  Derivative* exp_grad;
  Derivative* sqrt_grad;
  Derivative* silu_grad;
  Derivative* gelu_grad;
  Derivative* gelu_exact_grad;
  Derivative* erf_grad;
  Derivative* log_grad;
  Derivative* abs_grad;
  Derivative* sin_grad;
  Derivative* cos_grad;
  Derivative* softplus_grad;
  ShapedDerivative* elu_grad;
  ShapedDerivative* leaky_relu_grad;
  ShapedDerivative* hard_sigmoid_grad;
  ShapedDerivative* clip_grad;
};

namespace baseline {
extern const ActivationLoops kActivationLoops;
}
namespace avx2 {
extern const ActivationLoops kActivationLoops;
}
namespace avx512 {
extern const ActivationLoops kActivationLoops;
}

}  // namespace muster::kernels
