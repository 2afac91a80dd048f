#include "kernels/optimizer/optimizer.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "kernels/optimizer/optimizer_simd.h"

namespace muster::kernels {
namespace {

bool HasMoments(OptimizerRule rule) {
  return rule == OptimizerRule::kAdam || rule == OptimizerRule::kAdamw ||
         rule == OptimizerRule::kLamb;
}

bool IsSgd(OptimizerRule rule) {
  return rule == OptimizerRule::kSgd || rule == OptimizerRule::kSgdMomentum ||
         rule == OptimizerRule::kSgdNesterov;
}

OptimizerCoefficients Coefficients(const OptimizerSettings& settings, double learning_rate,
                                   int64_t step) {
  OptimizerCoefficients c{};
  c.learning_rate = static_cast<float>(learning_rate);
  c.decay = static_cast<float>(settings.weight_decay);
  c.first = static_cast<float>(settings.momentum);
  c.second = static_cast<float>(settings.alpha);
  c.second_rest = static_cast<float>(1 - settings.alpha);
  c.epsilon = static_cast<float>(settings.epsilon);
  if (IsSgd(settings.rule)) {
    c.decay = static_cast<float>(settings.trust_ratio * settings.weight_decay);
  }
  if (!HasMoments(settings.rule)) return c;
  const double t = static_cast<double>(step + 1);
  const double first_scale = 1 / (1 - std::pow(settings.beta1, t));
  c.first = static_cast<float>(settings.beta1);
  c.first_rest = static_cast<float>(1 - settings.beta1);
  c.first_scale = static_cast<float>(first_scale);
  c.second = static_cast<float>(settings.beta2);
  c.second_rest = static_cast<float>(1 - settings.beta2);
  c.second_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(settings.beta2, t)));
  if (settings.rule == OptimizerRule::kLamb) {
    c.learning_rate = static_cast<float>(learning_rate * settings.trust_ratio);
  } else {
    c.learning_rate = static_cast<float>(learning_rate * first_scale);
  }
  if (settings.rule == OptimizerRule::kAdamw) {
    c.decay = static_cast<float>(1 - learning_rate * settings.weight_decay);
  }
  return c;
}

ClipCoefficients Coefficients(const GradientClip& clip) {
  return {.factor = static_cast<float>(clip.factor),
          .limit = static_cast<float>(clip.limit),
          .changes_nothing = clip.factor == 1 && std::isinf(clip.limit)};
}

// Multiplies the clip by the trust ratio r for the SGD rules. r (g + wd p) equals r g + r wd p, so
// r becomes part of the factor of the gradient, and of the decay.
GradientClip WithTrustRatio(GradientClip clip, const OptimizerSettings& settings) {
  if (!IsSgd(settings.rule)) return clip;
  clip.factor *= settings.trust_ratio;
  clip.limit *= settings.trust_ratio;
  return clip;
}

// Returns the build for `level`.
template <typename Loop>
Loop* At(Loop* const (&loops)[3], SimdLevel level) {
  return loops[static_cast<int>(level)];
}

// Ends the process if `joins` break the rules at kOpenSumsMax. Returns the joins for the loops. Up
// to two ranks have only one order, so the loops use the faster code for rank order.
const uint8_t* CheckedJoins(const uint8_t* joins, int ranks) {
  if (joins == nullptr) return nullptr;
  int sums = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    ++sums;
    if (sums > kOpenSumsMax || joins[rank] >= sums) {
      std::fprintf(stderr, "joins[%d] of %d ranks is %d, with %d sums of at most %d\n", rank, ranks,
                   joins[rank], sums, kOpenSumsMax);
      std::abort();
    }
    sums -= joins[rank];
  }
  if (sums != 1) {
    std::fprintf(stderr, "the joins of %d ranks leave %d sums instead of 1\n", ranks, sums);
    std::abort();
  }
  return ranks <= 2 ? nullptr : joins;
}

OptimizerBuffers WithCheckedJoins(OptimizerBuffers buffers) {
  buffers.joins = CheckedJoins(buffers.joins, buffers.ranks);
  return buffers;
}

}  // namespace

int OptimizerSlots(OptimizerRule rule) {
  if (rule == OptimizerRule::kSgd) return 0;
  return HasMoments(rule) ? 2 : 1;
}

double ApplyOptimizer(const OptimizerSettings& settings, double learning_rate, int64_t step,
                      const OptimizerBuffers& buffers, int64_t n, const GradientClip& clip,
                      SimdLevel level) {
  const OptimizerCoefficients coefficients = Coefficients(settings, learning_rate, step);
  ApplyOptimizerLoop* const loops[] = {baseline::Apply, avx2::Apply, avx512::Apply};
  return At(loops, level)(settings.rule, coefficients, Coefficients(WithTrustRatio(clip, settings)),
                          WithCheckedJoins(buffers), n);
}

DirectionSquares MeasureDirection(const OptimizerSettings& settings, int64_t step,
                                  const OptimizerBuffers& buffers, int64_t n,
                                  const GradientClip& clip, SimdLevel level) {
  const OptimizerCoefficients coefficients = Coefficients(settings, /*learning_rate=*/0, step);
  MeasureDirectionLoop* const loops[] = {baseline::Measure, avx2::Measure, avx512::Measure};
  return At(loops, level)(settings.rule, coefficients, Coefficients(clip),
                          WithCheckedJoins(buffers), n);
}

double SumGradients(float* out, const Gradient* gradients, int ranks, int64_t n,
                    const uint8_t* joins, SimdLevel level) {
  SumGradientsLoop* const loops[] = {baseline::Sum, avx2::Sum, avx512::Sum};
  return At(loops, level)(out, gradients, CheckedJoins(joins, ranks), ranks, n);
}

double ApplyStatistic(float* value_out, const float* value_in, const Gradient* contributions,
                      int ranks, double momentum, int64_t n, const uint8_t* joins,
                      SimdLevel level) {
  ApplyStatisticLoop* const loops[] = {baseline::ApplyToStatistic, avx2::ApplyToStatistic,
                                       avx512::ApplyToStatistic};
  return At(loops, level)(value_out, value_in, contributions, CheckedJoins(joins, ranks), ranks,
                          static_cast<float>(momentum), n);
}

}  // namespace muster::kernels
