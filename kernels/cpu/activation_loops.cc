#include "kernels/cpu/activation_loops.h"

#include "kernels/cpu/vector.h"

namespace muster::kernels::KERNELS_SIMD {
namespace {

constexpr float kSqrt2OverPi = 0.79788456080286536f;
constexpr float kGeluCubic = 0.044715f;

Vec Relu(Vec x) { return x < 0.0f ? Vec{} : x; }
Vec Silu(Vec x) { return x * Sigmoid(x); }
Vec Neg(Vec x) { return -x; }

// 1 / (1 + exp(-2u)) = (1 + tanh(u)) / 2 without the cancellation of the right side.
Vec GeluGate(Vec x) {
  return Sigmoid(2.0f * x * (kSqrt2OverPi + kSqrt2OverPi * kGeluCubic * (x * x)));
}

Vec Gelu(Vec x) { return x * GeluGate(x); }
Vec GeluExact(Vec x) { return x * NormalCdf(x); }

Vec ReluGrad(Vec dy, Vec y) { return y > 0.0f ? dy : Vec{}; }
Vec TanhGrad(Vec dy, Vec y) { return dy * (1.0f - y * y); }
Vec SigmoidGrad(Vec dy, Vec y) { return dy * (y * (1.0f - y)); }
Vec ExpGrad(Vec dy, Vec y) { return dy * y; }
Vec SqrtGrad(Vec dy, Vec y) { return dy * (0.5f / y); }

Vec SiluGrad(Vec dy, Vec x) {
  const Vec gate = Sigmoid(x);
  return dy * (gate * (1.0f + x * (1.0f - gate)));
}

Vec GeluGrad(Vec dy, Vec x) {
  // Nothing changes beyond, and squares stay finite.
  x = x > 30.0f ? Splat(30.0f) : x;
  x = x < -30.0f ? Splat(-30.0f) : x;
  const Vec gate = GeluGate(x);
  const Vec slope = kSqrt2OverPi + 3.0f * kSqrt2OverPi * kGeluCubic * (x * x);
  return dy * (gate * (1.0f + 2.0f * x * (1.0f - gate) * slope));
}

Vec GeluExactGrad(Vec dy, Vec x) {
  return dy * (NormalCdf(x) + x * (0.39894228040143268f * Exp(-0.5f * (x * x))));
}

Vec ErfGrad(Vec dy, Vec x) { return dy * (1.12837916709551257f * Exp(-(x * x))); }
Vec LogGrad(Vec dy, Vec x) { return dy / x; }

template <Vec (*F)(Vec)>
void Each(float* y, const float* x, int64_t n) {
  Map([](Vec v) { return F(v); }, n, y, x);
}

template <Vec (*F)(Vec, Vec)>
void EachGrad(float* dx, const float* dy, const float* saved, int64_t n) {
  Map([](Vec d, Vec v) { return F(d, v); }, n, dx, dy, saved);
}

}  // namespace

extern const ActivationLoops kActivationLoops;
const ActivationLoops kActivationLoops = {
    .relu = Each<Relu>,
    .silu = Each<Silu>,
    .tanh = Each<Tanh>,
    .sigmoid = Each<Sigmoid>,
    .erf = Each<Erf>,
    .exp = Each<Exp>,
    .log = Each<Log>,
    .sqrt = Each<SquareRoot>,
    .neg = Each<Neg>,
    .gelu = Each<Gelu>,
    .gelu_exact = Each<GeluExact>,
    .relu_grad = EachGrad<ReluGrad>,
    .tanh_grad = EachGrad<TanhGrad>,
    .sigmoid_grad = EachGrad<SigmoidGrad>,
    .exp_grad = EachGrad<ExpGrad>,
    .sqrt_grad = EachGrad<SqrtGrad>,
    .silu_grad = EachGrad<SiluGrad>,
    .gelu_grad = EachGrad<GeluGrad>,
    .gelu_exact_grad = EachGrad<GeluExactGrad>,
    .erf_grad = EachGrad<ErfGrad>,
    .log_grad = EachGrad<LogGrad>,
};

}  // namespace muster::kernels::KERNELS_SIMD
