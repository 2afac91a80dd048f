// The loops of activation.h, once per instruction set.
#pragma once

#include <cstdint>

namespace muster::kernels {

struct ActivationLoops {
  using Function = void(float* y, const float* x, int64_t n);
  using Derivative = void(float* dx, const float* dy, const float* saved, int64_t n);

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
