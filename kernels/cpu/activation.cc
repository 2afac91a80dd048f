#include "kernels/activation.h"

#include "kernels/cpu/activation_loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_level.h"

namespace muster::kernels {
namespace {

constexpr int64_t kGrain = 1 << 14;

const ActivationLoops& Loops() {
  return ForThisProcessor(baseline::kActivationLoops, avx2::kActivationLoops,
                          avx512::kActivationLoops);
}

void Run(ActivationLoops::Function* loop, float* y, const float* x, int64_t n) {
  ParallelFor(n, kGrain,
              [=](int64_t begin, int64_t end) { loop(y + begin, x + begin, end - begin); });
}

void Run(ActivationLoops::Derivative* loop, float* dx, const float* dy, const float* saved,
         int64_t n) {
  ParallelFor(n, kGrain, [=](int64_t begin, int64_t end) {
    loop(dx + begin, dy + begin, saved + begin, end - begin);
  });
}

}  // namespace

void Relu(float* y, const float* x, int64_t n) { Run(Loops().relu, y, x, n); }
void Silu(float* y, const float* x, int64_t n) { Run(Loops().silu, y, x, n); }
void Tanh(float* y, const float* x, int64_t n) { Run(Loops().tanh, y, x, n); }
void Sigmoid(float* y, const float* x, int64_t n) { Run(Loops().sigmoid, y, x, n); }
void Erf(float* y, const float* x, int64_t n) { Run(Loops().erf, y, x, n); }
void Exp(float* y, const float* x, int64_t n) { Run(Loops().exp, y, x, n); }
void Log(float* y, const float* x, int64_t n) { Run(Loops().log, y, x, n); }
void Sqrt(float* y, const float* x, int64_t n) { Run(Loops().sqrt, y, x, n); }
void Neg(float* y, const float* x, int64_t n) { Run(Loops().neg, y, x, n); }
void Gelu(float* y, const float* x, int64_t n) { Run(Loops().gelu, y, x, n); }
void GeluExact(float* y, const float* x, int64_t n) { Run(Loops().gelu_exact, y, x, n); }

void ReluGrad(float* dx, const float* dy, const float* y, int64_t n) {
  Run(Loops().relu_grad, dx, dy, y, n);
}
void TanhGrad(float* dx, const float* dy, const float* y, int64_t n) {
  Run(Loops().tanh_grad, dx, dy, y, n);
}
void SigmoidGrad(float* dx, const float* dy, const float* y, int64_t n) {
  Run(Loops().sigmoid_grad, dx, dy, y, n);
}
void ExpGrad(float* dx, const float* dy, const float* y, int64_t n) {
  Run(Loops().exp_grad, dx, dy, y, n);
}
void SqrtGrad(float* dx, const float* dy, const float* y, int64_t n) {
  Run(Loops().sqrt_grad, dx, dy, y, n);
}

void SiluGrad(float* dx, const float* dy, const float* x, int64_t n) {
  Run(Loops().silu_grad, dx, dy, x, n);
}
void GeluGrad(float* dx, const float* dy, const float* x, int64_t n) {
  Run(Loops().gelu_grad, dx, dy, x, n);
}
void GeluExactGrad(float* dx, const float* dy, const float* x, int64_t n) {
  Run(Loops().gelu_exact_grad, dx, dy, x, n);
}
void ErfGrad(float* dx, const float* dy, const float* x, int64_t n) {
  Run(Loops().erf_grad, dx, dy, x, n);
}
void LogGrad(float* dx, const float* dy, const float* x, int64_t n) {
  Run(Loops().log_grad, dx, dy, x, n);
}

}  // namespace muster::kernels
