#include "kernels/optimizer/optimizer.h"

#include <cmath>

#include "kernels/optimizer/optimizer_simd.h"

namespace muster::kernels {
namespace {

bool IsAdam(OptimizerRule rule) {
  return rule == OptimizerRule::kAdam || rule == OptimizerRule::kAdamw;
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
  if (settings.rule == OptimizerRule::kAdamw) {
    c.decay = static_cast<float>(1 - learning_rate * settings.weight_decay);
  }
  if (IsAdam(settings.rule)) {
    const double t = static_cast<double>(step + 1);
    c.learning_rate = static_cast<float>(learning_rate / (1 - std::pow(settings.beta1, t)));
    c.first = static_cast<float>(settings.beta1);
    c.first_rest = static_cast<float>(1 - settings.beta1);
    c.second = static_cast<float>(settings.beta2);
    c.second_rest = static_cast<float>(1 - settings.beta2);
    c.correction = static_cast<float>(std::sqrt(1 - std::pow(settings.beta2, t)));
  }
  return c;
}

}  // namespace

int OptimizerSlots(OptimizerRule rule) {
  if (rule == OptimizerRule::kSgd) return 0;
  return IsAdam(rule) ? 2 : 1;
}

double ApplyOptimizer(const OptimizerSettings& settings, double learning_rate, int64_t step,
                      const OptimizerBuffers& buffers, int64_t n, SimdLevel level) {
  const OptimizerCoefficients coefficients = Coefficients(settings, learning_rate, step);
  switch (level) {
    case SimdLevel::kAvx512:
      return avx512::Apply(settings.rule, coefficients, buffers, n);
    case SimdLevel::kAvx2:
      return avx2::Apply(settings.rule, coefficients, buffers, n);
    case SimdLevel::kBaseline:
      break;
  }
  return baseline::Apply(settings.rule, coefficients, buffers, n);
}

}  // namespace muster::kernels
