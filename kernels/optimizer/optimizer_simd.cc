#include "kernels/optimizer/optimizer_simd.h"

// Plain loops that the compiler vectorises: correctly rounded operations make every width agree to
// the bit.
namespace muster::kernels::KERNELS_SIMD {
namespace {

constexpr int kBlock = 256;  // the summed gradient stays in the first-level cache
constexpr int kLanes = 16;
static_assert(kBlock % kLanes == 0, "every block begins at lane 0");

struct Lanes {
  double sums[kLanes];
};

__attribute__((noinline)) void Add(float* __restrict sum, const float* __restrict a,
                                   const float* __restrict b, int n) {
  for (int i = 0; i < n; ++i) sum[i] = a[i] + b[i];
}

__attribute__((noinline)) void AddTo(float* __restrict sum, const float* __restrict a, int n) {
  for (int i = 0; i < n; ++i) sum[i] += a[i];
}

// A NaN stays.
__attribute__((noinline)) void Clip(float* __restrict clipped, const float* g,
                                    const ClipCoefficients c, int n) {
  for (int i = 0; i < n; ++i) {
    const float scaled = c.factor * g[i];
    const float below = scaled > c.limit ? c.limit : scaled;
    clipped[i] = below < -c.limit ? -c.limit : below;
  }
}

__attribute__((noinline)) void MoveTowards(float* value_out, const float* value_in,
                                           const float* sum, float momentum, int n) {
  for (int i = 0; i < n; ++i) value_out[i] = value_in[i] + momentum * (sum[i] - value_in[i]);
}

__attribute__((noinline)) void AddSquares(Lanes& lanes, const float* __restrict g, int n) {
  Lanes local = lanes;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double x = g[i + lane];
      local.sums[lane] += x * x;
    }
  }
  for (int lane = 0; i < n; ++i, ++lane) {
    const double x = g[i];
    local.sums[lane] += x * x;
  }
  lanes = local;
}

double Total(const Lanes& lanes) {
  double sums[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) sums[lane] = lanes.sums[lane];
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

template <OptimizerRule kRule>
__attribute__((noinline)) void Update(const OptimizerCoefficients c,
                                      const float* __restrict gradient,
                                      const float* __restrict p_in, float* __restrict p_out,
                                      const float* __restrict s_in, float* __restrict s_out,
                                      const float* __restrict v_in, float* __restrict v_out,
                                      int n) {
  for (int i = 0; i < n; ++i) {
    float p = p_in[i];
    float g = gradient[i];
    if constexpr (kRule == OptimizerRule::kAdamw) {
      p = p * c.decay;
    } else {
      g = g + c.decay * p;
    }
    if constexpr (kRule == OptimizerRule::kSgd) {
      p = p - c.learning_rate * g;
    } else if constexpr (kRule == OptimizerRule::kSgdMomentum) {
      const float b = c.first * s_in[i] + g;
      s_out[i] = b;
      p = p - c.learning_rate * b;
    } else if constexpr (kRule == OptimizerRule::kSgdNesterov) {
      const float b = c.first * s_in[i] + g;
      s_out[i] = b;
      p = p - c.learning_rate * (g + c.first * b);
    } else if constexpr (kRule == OptimizerRule::kAdam || kRule == OptimizerRule::kAdamw) {
      const float m = c.first * s_in[i] + c.first_rest * g;
      const float v = c.second * v_in[i] + c.second_rest * g * g;
      s_out[i] = m;
      v_out[i] = v;
      p = p - c.learning_rate * m / (__builtin_sqrtf(v) / c.correction + c.epsilon);
    } else if constexpr (kRule == OptimizerRule::kAdagrad) {
      const float s = s_in[i] + g * g;
      s_out[i] = s;
      p = p - c.learning_rate * g / (__builtin_sqrtf(s) + c.epsilon);
    } else {
      const float s = c.second * s_in[i] + c.second_rest * g * g;
      s_out[i] = s;
      p = p - c.learning_rate * g / (__builtin_sqrtf(s) + c.epsilon);
    }
    p_out[i] = p;
  }
}

// The ranks' sum of elements [i, i + n): in `sum`, or where the only rank has it.
const float* SumOf(float* sum, const float* const* gradients, int ranks, int64_t i, int n) {
  if (ranks == 1) return gradients[0] + i;
  Add(sum, gradients[0] + i, gradients[1] + i, n);
  for (int rank = 2; rank < ranks; ++rank) AddTo(sum, gradients[rank] + i, n);
  return sum;
}

int BlockAt(int64_t i, int64_t n) { return n - i < kBlock ? static_cast<int>(n - i) : kBlock; }

// A slot that the rule does not have is null.
template <typename T>
T* At(T* slot, int64_t i) {
  return slot == nullptr ? nullptr : slot + i;
}

template <OptimizerRule kRule>
double ApplyRule(const OptimizerCoefficients& c, const ClipCoefficients& clip,
                 const OptimizerBuffers& b, int64_t n) {
  Lanes lanes = {};
  float sum[kBlock], clipped[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int count = BlockAt(i, n);
    const float* g = SumOf(sum, b.gradients, b.ranks, i, count);
    AddSquares(lanes, g, count);
    if (!clip.changes_nothing) {
      Clip(clipped, g, clip, count);
      g = clipped;
    }
    Update<kRule>(c, g, b.values_in + i, b.values_out + i, At(b.slots_in[0], i),
                  At(b.slots_out[0], i), At(b.slots_in[1], i), At(b.slots_out[1], i), count);
  }
  return Total(lanes);
}

}  // namespace

double Apply(OptimizerRule rule, const OptimizerCoefficients& coefficients,
             const ClipCoefficients& clip, const OptimizerBuffers& buffers, int64_t n) {
  switch (rule) {
    case OptimizerRule::kSgd:
      return ApplyRule<OptimizerRule::kSgd>(coefficients, clip, buffers, n);
    case OptimizerRule::kSgdMomentum:
      return ApplyRule<OptimizerRule::kSgdMomentum>(coefficients, clip, buffers, n);
    case OptimizerRule::kSgdNesterov:
      return ApplyRule<OptimizerRule::kSgdNesterov>(coefficients, clip, buffers, n);
    case OptimizerRule::kAdam:
      return ApplyRule<OptimizerRule::kAdam>(coefficients, clip, buffers, n);
    case OptimizerRule::kAdamw:
      return ApplyRule<OptimizerRule::kAdamw>(coefficients, clip, buffers, n);
    case OptimizerRule::kAdagrad:
      return ApplyRule<OptimizerRule::kAdagrad>(coefficients, clip, buffers, n);
    case OptimizerRule::kRmsprop:
      return ApplyRule<OptimizerRule::kRmsprop>(coefficients, clip, buffers, n);
  }
  return 0;
}

double Sum(float* out, const float* const* gradients, int ranks, int64_t n) {
  Lanes lanes = {};
  float sum[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int count = BlockAt(i, n);
    const float* g = SumOf(sum, gradients, ranks, i, count);
    AddSquares(lanes, g, count);
    if (g != out + i) __builtin_memcpy(out + i, g, count * sizeof(float));
  }
  return Total(lanes);
}

double ApplyToStatistic(float* value_out, const float* value_in, const float* const* contributions,
                        int ranks, float momentum, int64_t n) {
  Lanes lanes = {};
  float sum[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int count = BlockAt(i, n);
    const float* total = SumOf(sum, contributions, ranks, i, count);
    AddSquares(lanes, total, count);
    MoveTowards(value_out + i, value_in + i, total, momentum, count);
  }
  return Total(lanes);
}

}  // namespace muster::kernels::KERNELS_SIMD
