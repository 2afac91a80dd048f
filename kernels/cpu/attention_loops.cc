#include "kernels/cpu/attention_loops.h"

#include "kernels/cpu/vector.h"

namespace muster::kernels::KERNELS_SIMD {
namespace {

constexpr float kInfinity = __builtin_inff();

// Uses one lane of Exp(), so that the result has the bits that the vector code computes.
float ScalarExp(float x) { return Exp(Splat(x))[0]; }

// Returns whether an element is NaN. Largest() does not show this, because it may skip a NaN.
bool HasNan(const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] != x[i]) return true;
  }
  return false;
}

float SoftmaxBlock(float* s, const float* mask, float scale, int64_t n,
                   AttentionLoops::Running* row) {
  if (mask == nullptr) {
    Map([scale](Vec v) { return v * scale; }, n, s, static_cast<const float*>(s));
  } else {
    Map([scale](Vec v, Vec m) { return v * scale + m; }, n, s, static_cast<const float*>(s), mask);
  }
  const float largest = Largest(s, n);
  const float max = largest > row->max ? largest : row->max;
  if (max == -kInfinity && !HasNan(s, n)) {  // no key is seen yet
    for (int64_t i = 0; i < n; ++i) s[i] = 0;
    return 1;
  }
  const double sum = SumBlocks(
      n,
      [=](int64_t i) {
        const Vec e = Exp(Load(s + i) - max);
        Store(s + i, e);
        return e;
      },
      [=](int64_t i, int64_t m) {
        const Vec e = Exp(LoadFirst(s + i, m, -kInfinity) - max);
        StoreFirst(s + i, e, m);
        return e;
      });
  const float correction = ScalarExp(row->max - max);
  row->sum = row->sum * correction + static_cast<float>(sum);
  row->max = max;
  return correction;
}

void SoftmaxBlockGrad(float* s, float* dp, const float* mask, float scale, float lse, float mean,
                      int64_t n) {
  if (mask == nullptr) {
    Map([=](Vec v) { return Exp(v * scale - lse); }, n, s, static_cast<const float*>(s));
  } else {
    Map([=](Vec v, Vec m) { return Exp(v * scale + m - lse); }, n, s, static_cast<const float*>(s),
        mask);
  }
  Map([=](Vec d, Vec p) { return p * (d - mean) * scale; }, n, dp, static_cast<const float*>(dp),
      static_cast<const float*>(s));
}

void Scale(float* y, float factor, int64_t n) {
  Map([factor](Vec v) { return v * factor; }, n, y, static_cast<const float*>(y));
}

double Dot(const float* a, const float* b, int64_t n) {
  return Reduce([](Vec u, Vec v) { return u * v; }, n, a, b);
}

}  // namespace

extern const AttentionLoops kAttentionLoops;
const AttentionLoops kAttentionLoops = {
    .softmax_block = SoftmaxBlock,
    .softmax_block_grad = SoftmaxBlockGrad,
    .scale = Scale,
    .dot = Dot,
};

}  // namespace muster::kernels::KERNELS_SIMD
