#include "kernels/cpu/activation_loops.h"

#include "kernels/cpu/vector.h"

namespace muster::kernels::KERNELS_SIMD {
namespace {

constexpr float kSqrt2OverPi = 0.79788456080286536f;
constexpr float kGeluCubic = 0.044715f;

Vec Relu(Vec x) { return x < 0.0f ? Vec{} : x; }
Vec Silu(Vec x) { return x * Sigmoid(x); }
Vec Neg(Vec x) { return -x; }

// Returns (1 + tanh(u)) / 2, computed as 1 / (1 + exp(-2u)) to avoid cancellation.
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
  // The result is constant beyond +-30, and the limit keeps squares finite.
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

// Calls the standard library lane by lane, because it reduces arguments of any size. Models compute
// few sines, so the speed does not matter.
Vec Sin(Vec x) {
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sinf(x[i]);
  return x;
}
Vec Cos(Vec x) {
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_cosf(x[i]);
  return x;
}

// Returns log(1 + x) for x in [0, 1]. The rounding error of 1 + x is the same in both factors and
// cancels.
Vec Log1p(Vec x) {
  const Vec sum = 1.0f + x;
  return sum == 1.0f ? x : Log(sum) * (x / (sum - 1.0f));
}
Vec Softplus(Vec x) { return Max(x, Vec{}) + Log1p(Exp(-Abs(x))); }

Vec Floor(Vec x) { return Rounded<_MM_FROUND_TO_NEG_INF>(x); }
Vec Ceil(Vec x) { return Rounded<_MM_FROUND_TO_POS_INF>(x); }
Vec Round(Vec x) { return Rounded<_MM_FROUND_TO_NEAREST_INT>(x); }
Vec Sign(Vec x) { return x > 0.0f ? Splat(1.0f) : x < 0.0f ? Splat(-1.0f) : x; }
Vec IsNan(Vec x) { return (Vec)((x != x) & 1); }

// For x <= 0, exp(x) - 1 is computed by tanh, which avoids cancellation.
Vec Elu(Vec x, float alpha, float) {
  return x > 0.0f ? x : alpha * (Tanh(0.5f * x) * (Exp(x) + 1.0f));
}
Vec LeakyRelu(Vec x, float slope, float) { return x > 0.0f ? x : slope * x; }
Vec Clip(Vec x, float low, float high) {
  x = x < low ? Splat(low) : x;
  return x > high ? Splat(high) : x;
}
Vec HardSigmoid(Vec x, float alpha, float beta) { return Clip(alpha * x + beta, 0.0f, 1.0f); }

Vec AbsGrad(Vec dy, Vec x) { return dy * Sign(x); }
Vec SinGrad(Vec dy, Vec x) { return dy * Cos(x); }
Vec CosGrad(Vec dy, Vec x) { return -dy * Sin(x); }
Vec SoftplusGrad(Vec dy, Vec x) { return dy * Sigmoid(x); }
Vec EluGrad(Vec dy, Vec x, float alpha, float) { return x > 0.0f ? dy : dy * (alpha * Exp(x)); }
Vec LeakyReluGrad(Vec dy, Vec x, float slope, float) { return x > 0.0f ? dy : dy * slope; }
Vec HardSigmoidGrad(Vec dy, Vec x, float alpha, float beta) {
  const Vec y = alpha * x + beta;
  return ((y > 0.0f) & (y < 1.0f)) ? dy * alpha : Vec{};
}
Vec ClipGrad(Vec dy, Vec x, float low, float high) {
  return ((x >= low) & (x <= high)) ? dy : Vec{};
}

template <Vec (*F)(Vec)>
void Each(float* y, const float* x, int64_t n) {
  Map([](Vec v) { return F(v); }, n, y, x);
}

template <Vec (*F)(Vec, Vec)>
void EachGrad(float* dx, const float* dy, const float* saved, int64_t n) {
  Map([](Vec d, Vec v) { return F(d, v); }, n, dx, dy, saved);
}

template <Vec (*F)(Vec, float, float)>
void EachShaped(float* y, const float* x, float a, float b, int64_t n) {
  Map([=](Vec v) { return F(v, a, b); }, n, y, x);
}

template <Vec (*F)(Vec, Vec, float, float)>
void EachShapedGrad(float* dx, const float* dy, const float* saved, float a, float b, int64_t n) {
  Map([=](Vec d, Vec v) { return F(d, v, a, b); }, n, dx, dy, saved);
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
    .abs = Each<Abs>,
    .sin = Each<Sin>,
    .cos = Each<Cos>,
    .softplus = Each<Softplus>,
    .floor = Each<Floor>,
    .ceil = Each<Ceil>,
    .round = Each<Round>,
    .sign = Each<Sign>,
    .is_nan = Each<IsNan>,
    .elu = EachShaped<Elu>,
    .leaky_relu = EachShaped<LeakyRelu>,
    .hard_sigmoid = EachShaped<HardSigmoid>,
    .clip = EachShaped<Clip>,
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
    .abs_grad = EachGrad<AbsGrad>,
    .sin_grad = EachGrad<SinGrad>,
    .cos_grad = EachGrad<CosGrad>,
    .softplus_grad = EachGrad<SoftplusGrad>,
    .elu_grad = EachShapedGrad<EluGrad>,
    .leaky_relu_grad = EachShapedGrad<LeakyReluGrad>,
    .hard_sigmoid_grad = EachShapedGrad<HardSigmoidGrad>,
    .clip_grad = EachShapedGrad<ClipGrad>,
};

}  // namespace muster::kernels::KERNELS_SIMD
