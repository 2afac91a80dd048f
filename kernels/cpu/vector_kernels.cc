#include "kernels/cpu/vector_kernels.h"

#include <cmath>
#include <cstdint>

#include "kernels/cpu/vector.h"

namespace muster::kernels::KERNELS_SIMD {
namespace {

// y[i] = f(x[i]...) in whole vectors; the last, partial one goes through the same code, so that an
// element's value does not depend on where it stands.
template <typename F, typename... X>
inline void Map(F f, int64_t n, float* y, const X*... x) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(y + i, f(Load(x + i)...));
  if (i < n) StoreFirst(y + i, f(LoadFirst(x + i, n - i)...), n - i);
}

// Sum of f(x[i]...), where f of the fill values of a partial vector (zeros) must be zero.
template <typename F, typename... X>
inline float Reduce(F f, int64_t n, const X*... x) {
  Vec even{}, odd{};
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    even += f(Load(x + i)...);
    odd += f(Load(x + i + kLanes)...);
  }
  if (i + kLanes <= n) {
    even += f(Load(x + i)...);
    i += kLanes;
  }
  if (i < n) odd += f(LoadFirst(x + i, n - i)...);
  return SumLanes(even + odd);
}

void Relu(float* y, const float* x, int64_t n) {
  Map([](Vec v) { return v < 0.0f ? Vec{} : v; }, n, y, x);
}

void ReluGrad(float* dx, const float* dy, const float* y, int64_t n) {
  Map([](Vec d, Vec v) { return v > 0.0f ? d : Vec{}; }, n, dx, dy, y);
}

constexpr float kSqrt2OverPi = 0.79788456080286536f;
constexpr float kGeluCubic = 0.044715f;

// 1 / (1 + exp(-2u)) = (1 + tanh(u)) / 2 without the cancellation of the right side.
inline Vec GeluGate(Vec x) {
  const Vec u = x * (kSqrt2OverPi + kSqrt2OverPi * kGeluCubic * (x * x));
  return 1.0f / (1.0f + Exp(-2.0f * u));
}

void Gelu(float* y, const float* x, int64_t n) {
  Map([](Vec v) { return v * GeluGate(v); }, n, y, x);
}

void GeluGrad(float* dx, const float* dy, const float* x, int64_t n) {
  Map(
      [](Vec d, Vec v) {
        const Vec gate = GeluGate(v);
        const Vec slope = kSqrt2OverPi + 3.0f * kSqrt2OverPi * kGeluCubic * (v * v);
        return d * gate * (1.0f + 2.0f * v * (1.0f - gate) * slope);
      },
      n, dx, dy, x);
}

void Add(float* y, const float* a, const float* b, int64_t n) {
  Map([](Vec u, Vec v) { return u + v; }, n, y, a, b);
}

void Scale(float* y, const float* x, float factor, int64_t n) {
  Map([factor](Vec v) { return v * factor; }, n, y, x);
}

float Sum(const float* x, int64_t n) {
  return Reduce([](Vec v) { return v; }, n, x);
}

void SumRows(float* sum, const float* x, int64_t rows, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] = 0;
  int64_t r = 0;
  // Four rows at a time: a quarter of the traffic to `sum`, and shorter chains of roundings.
  for (; r + 4 <= rows; r += 4) {
    const float* row = x + r * n;
    Map([](Vec s, Vec a, Vec b, Vec c, Vec d) { return s + ((a + b) + (c + d)); }, n, sum,
        static_cast<const float*>(sum), row, row + n, row + 2 * n, row + 3 * n);
  }
  for (; r < rows; ++r) Add(sum, sum, x + r * n, n);
}

SoftmaxSums Softmax(float* p, const float* x, float scale, int64_t n) {
  Vec max = Splat(x[0]);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) max = Max(Load(x + i), max);
  if (i < n) max = Max(LoadFirst(x + i, n - i, x[0]), max);
  const float top = MaxLane(max);

  Vec sums{};
  for (i = 0; i + kLanes <= n; i += kLanes) {
    const Vec e = Exp((Load(x + i) - top) * scale);
    sums += e;
    Store(p + i, e);
  }
  float sum = SumLanes(sums);
  if (i < n) {
    StoreFirst(p + i, Exp((LoadFirst(x + i, n - i) - top) * scale), n - i);
    for (; i < n; ++i) sum += p[i];
  }
  Scale(p, p, 1.0f / sum, n);
  return {.max = top * scale, .sum = sum};
}

void SoftmaxGrad(float* dx, const float* p, const float* dp, float scale, int64_t n) {
  const float mean = Reduce([](Vec a, Vec b) { return a * b; }, n, p, dp);
  Map([mean, scale](Vec a, Vec b) { return a * (b - mean) * scale; }, n, dx, p, dp);
}

void LayerNorm(float* y, float* mean, float* rstd, const float* x, const float* gain,
               const float* bias, float epsilon, int64_t n) {
  const float center = Sum(x, n) / n;
  Vec squares{};
  int64_t i = 0;
  auto square = [center](Vec v) { return (v - center) * (v - center); };
  for (; i + kLanes <= n; i += kLanes) squares += square(Load(x + i));
  if (i < n) squares += square(LoadFirst(x + i, n - i, center));
  const float scale = 1.0f / std::sqrt(SumLanes(squares) / n + epsilon);

  Map([center, scale](Vec v, Vec g, Vec b) { return (v - center) * scale * g + b; }, n, y, x, gain,
      bias);
  *mean = center;
  *rstd = scale;
}

void LayerNormGradInput(float* dx, const float* dy, const float* x, const float* gain, float mean,
                        float rstd, int64_t n) {
  auto normal = [mean, rstd](Vec v) { return (v - mean) * rstd; };
  const float sum = Reduce([](Vec d, Vec g) { return d * g; }, n, dy, gain) / n;
  const float dot =
      Reduce([normal](Vec d, Vec g, Vec v) { return d * g * normal(v); }, n, dy, gain, x) / n;
  Map([=](Vec d, Vec g, Vec v) { return rstd * (d * g - sum - normal(v) * dot); }, n, dx, dy, gain,
      x);
}

void LayerNormGradParameters(float* dgain, float* dbias, const float* dy, const float* x,
                             float mean, float rstd, int64_t n) {
  Map([mean, rstd](Vec s, Vec d, Vec v) { return s + d * ((v - mean) * rstd); }, n, dgain,
      static_cast<const float*>(dgain), dy, x);
  Add(dbias, dbias, dy, n);
}

}  // namespace

extern const VectorKernels kVectorKernels;
const VectorKernels kVectorKernels = {
    .relu = Relu,
    .relu_grad = ReluGrad,
    .gelu = Gelu,
    .gelu_grad = GeluGrad,
    .add = Add,
    .scale = Scale,
    .sum = Sum,
    .sum_rows = SumRows,
    .softmax = Softmax,
    .softmax_grad = SoftmaxGrad,
    .layer_norm = LayerNorm,
    .layer_norm_grad_input = LayerNormGradInput,
    .layer_norm_grad_parameters = LayerNormGradParameters,
};

}  // namespace muster::kernels::KERNELS_SIMD
