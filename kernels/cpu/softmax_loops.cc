#include "kernels/cpu/softmax_loops.h"

#include "kernels/cpu/vector.h"

namespace muster::kernels::KERNELS_SIMD {
namespace {

// Returns the sum of exp(x - top). With kStore the terms are stored in y.
template <bool kStore>
double SumExp(float* y, const float* x, float top, int64_t n) {
  return SumBlocks(
      n,
      [=](int64_t i) {
        const Vec e = Exp(Load(x + i) - top);
        if constexpr (kStore) Store(y + i, e);
        return e;
      },
      [=](int64_t i, int64_t m) {
        const Vec e = Exp(LoadFirst(x + i, m, -__builtin_inff()) - top);
        if constexpr (kStore) StoreFirst(y + i, e, m);
        return e;
      });
}

void Softmax(float* y, const float* x, int64_t n) {
  const double sum = SumExp<true>(y, x, Largest(x, n), n);
  const float factor = static_cast<float>(1.0 / sum);
  Map([factor](Vec v) { return v * factor; }, n, y, static_cast<const float*>(y));
}

// Works block by block, so that memory is read once.
ExpSum SumExp(const float* x, int64_t n) {
  double top = -__builtin_inf(), sum = 0;  // sum of exp(x - top)
  for (int64_t i = 0; i < n; i += kSumBlock) {
    const int64_t m = n - i < kSumBlock ? n - i : kSumBlock;
    const float largest = Largest(x + i, m);
    if (largest == -__builtin_inff()) continue;
    if (largest > top) {
      sum *= __builtin_exp(top - largest);
      top = largest;
    }
    sum += SumExp<false>(nullptr, x + i, static_cast<float>(top), m);
  }
  return {top, sum};
}

float LogSumExp(const float* x, int64_t n) {
  const auto [top, sum] = SumExp(x, n);
  return static_cast<float>(__builtin_log(sum) + top);
}

void SoftmaxGrad(float* dx, const float* dy, const float* y, int64_t n) {
  const float mean = static_cast<float>(Reduce([](Vec d, Vec p) { return d * p; }, n, dy, y));
  Map([mean](Vec d, Vec p) { return p * (d - mean); }, n, dx, dy, y);
}

void LogSoftmaxGrad(float* dx, const float* dy, const float* y, int64_t n) {
  const float sum = static_cast<float>(Reduce([](Vec d) { return d; }, n, dy));
  Map([sum](Vec d, Vec v) { return d - Exp(v) * sum; }, n, dx, dy, y);
}

void Subtract(float* y, const float* x, float center, int64_t n) {
  Map([center](Vec v) { return v - center; }, n, y, x);
}

void ScaledExp(float* y, const float* x, float center, float factor, float offset, int64_t n) {
  Map([=](Vec v) { return factor * Exp(v - center) - offset; }, n, y, x);
}

// Returns log(1 + e) for e in [0, 1], including the digits of e that 1 + e drops.
inline Vec Log1p(Vec e) {
  const Vec u = 1.0f + e;
  return Log(u) + (e - (u - 1.0f)) / u;
}

double SigmoidCrossEntropy(const float* logits, const float* target, int64_t n) {
  auto loss = [](Vec x, Vec t) {
    const Vec positive = x < 0.0f ? Vec{} : x;
    return positive - x * t + Log1p(Exp(-Abs(x)));
  };
  return SumBlocks(
      n, [=](int64_t i) { return loss(Load(logits + i), Load(target + i)); },
      [=](int64_t i, int64_t m) {
        // The padding is a logit of 128 with a target of 1, which has a loss of 0.
        return loss(LoadFirst(logits + i, m, 128.0f), LoadFirst(target + i, m, 1.0f));
      });
}

void SigmoidCrossEntropyGrad(float* dlogits, const float* logits, const float* target, float factor,
                             int64_t n) {
  Map([factor](Vec x, Vec t) { return factor * (Sigmoid(x) - t); }, n, dlogits, logits, target);
}

double SquaredError(const float* prediction, const float* target, int64_t n) {
  return Reduce([](Vec a, Vec b) { return (a - b) * (a - b); }, n, prediction, target);
}

void ScaledDifference(float* y, const float* a, const float* b, float factor, int64_t n) {
  Map([factor](Vec u, Vec v) { return factor * (u - v); }, n, y, a, b);
}

}  // namespace

extern const SoftmaxLoops kSoftmaxLoops;
const SoftmaxLoops kSoftmaxLoops = {
    .softmax = Softmax,
    .softmax_grad = SoftmaxGrad,
    .log_softmax_grad = LogSoftmaxGrad,
    .log_sum_exp = LogSumExp,
    .sum_exp = SumExp,
    .subtract = Subtract,
    .scaled_exp = ScaledExp,
    .sigmoid_cross_entropy = SigmoidCrossEntropy,
    .sigmoid_cross_entropy_grad = SigmoidCrossEntropyGrad,
    .squared_error = SquaredError,
    .scaled_difference = ScaledDifference,
};

}  // namespace muster::kernels::KERNELS_SIMD
