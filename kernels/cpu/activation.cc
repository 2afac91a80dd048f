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

void Run(ActivationLoops::ShapedFunction* loop, float* y, const float* x, float a, float b,
         int64_t n) {
  ParallelFor(n, kGrain,
              [=](int64_t begin, int64_t end) { loop(y + begin, x + begin, a, b, end - begin); });
}

void Run(ActivationLoops::ShapedDerivative* loop, float* dx, const float* dy, const float* saved,
         float a, float b, int64_t n) {
  ParallelFor(n, kGrain, [=](int64_t begin, int64_t end) {
    loop(dx + begin, dy + begin, saved + begin, a, b, end - begin);
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
void Abs(float* y, const float* x, int64_t n) { Run(Loops().abs, y, x, n); }
void Sin(float* y, const float* x, int64_t n) { Run(Loops().sin, y, x, n); }
void Cos(float* y, const float* x, int64_t n) { Run(Loops().cos, y, x, n); }
void Softplus(float* y, const float* x, int64_t n) { Run(Loops().softplus, y, x, n); }
void Floor(float* y, const float* x, int64_t n) { Run(Loops().floor, y, x, n); }
void Ceil(float* y, const float* x, int64_t n) { Run(Loops().ceil, y, x, n); }
void Round(float* y, const float* x, int64_t n) { Run(Loops().round, y, x, n); }
void Sign(float* y, const float* x, int64_t n) { Run(Loops().sign, y, x, n); }

void Elu(float* y, const float* x, float alpha, int64_t n) { Run(Loops().elu, y, x, alpha, 0, n); }
void LeakyRelu(float* y, const float* x, float slope, int64_t n) {
  Run(Loops().leaky_relu, y, x, slope, 0, n);
}
void HardSigmoid(float* y, const float* x, float alpha, float beta, int64_t n) {
  Run(Loops().hard_sigmoid, y, x, alpha, beta, n);
}
void Clip(float* y, const float* x, float low, float high, int64_t n) {
  Run(Loops().clip, y, x, low, high, n);
}

void IsNan(int32_t* y, const float* x, int64_t n) {
  Run(Loops().is_nan, reinterpret_cast<float*>(y), x, n);
}

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
void AbsGrad(float* dx, const float* dy, const float* x, int64_t n) {
  Run(Loops().abs_grad, dx, dy, x, n);
}
void SinGrad(float* dx, const float* dy, const float* x, int64_t n) {
  Run(Loops().sin_grad, dx, dy, x, n);
}
void CosGrad(float* dx, const float* dy, const float* x, int64_t n) {
  Run(Loops().cos_grad, dx, dy, x, n);
}
void SoftplusGrad(float* dx, const float* dy, const float* x, int64_t n) {
  Run(Loops().softplus_grad, dx, dy, x, n);
}

void EluGrad(float* dx, const float* dy, const float* x, float alpha, int64_t n) {
  Run(Loops().elu_grad, dx, dy, x, alpha, 0, n);
}
void LeakyReluGrad(float* dx, const float* dy, const float* x, float slope, int64_t n) {
  Run(Loops().leaky_relu_grad, dx, dy, x, slope, 0, n);
}
void HardSigmoidGrad(float* dx, const float* dy, const float* x, float alpha, float beta,
                     int64_t n) {
  Run(Loops().hard_sigmoid_grad, dx, dy, x, alpha, beta, n);
}
void ClipGrad(float* dx, const float* dy, const float* x, float low, float high, int64_t n) {
  Run(Loops().clip_grad, dx, dy, x, low, high, n);
}

}  // namespace muster::kernels
