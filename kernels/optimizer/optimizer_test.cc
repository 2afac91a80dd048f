#include "kernels/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace muster::kernels {
namespace {

using enum OptimizerRule;

constexpr OptimizerRule kRules[] = {kSgd,   kSgdMomentum, kSgdNesterov, kAdam,
                                    kAdamw, kAdagrad,     kRmsprop};

OptimizerSettings SettingsOf(OptimizerRule rule) {
  return {.rule = rule, .momentum = 0.9, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1};
}

// Values, slots and the gradients of some ranks; Step() moves to the next version.
class Trajectory {
 public:
  Trajectory(int64_t n, int ranks, uint32_t seed) : generator_(seed), gradients_(ranks) {
    values_ = RandomFloats(n);
    slots_.assign(kOptimizerSlotsMax, std::vector<float>(n));
    for (std::vector<float>& gradient : gradients_) gradient = RandomFloats(n);
  }

  double Step(const OptimizerSettings& settings, double learning_rate, int64_t step,
              SimdLevel level = DetectSimdLevel()) {
    const int64_t n = values_.size();
    return StepIn({0, n}, settings, learning_rate, step, level);
  }

  // The same in several calls, each for elements [bounds[i], bounds[i + 1]).
  double StepIn(std::vector<int64_t> bounds, const OptimizerSettings& settings,
                double learning_rate, int64_t step, SimdLevel level = DetectSimdLevel()) {
    std::vector<float> values_out(values_.size());
    std::vector<std::vector<float>> slots_out(slots_.size(), std::vector<float>(values_.size()));
    double squares = 0;
    for (size_t part = 0; part + 1 < bounds.size(); ++part) {
      const int64_t begin = bounds[part];
      std::vector<const float*> gradients;
      for (const std::vector<float>& gradient : gradients_) gradients.push_back(&gradient[begin]);
      OptimizerBuffers buffers{.gradients = gradients.data(),
                               .ranks = static_cast<int>(gradients.size()),
                               .values_in = &values_[begin],
                               .values_out = &values_out[begin]};
      for (int slot = 0; slot < OptimizerSlots(settings.rule); ++slot) {
        buffers.slots_in[slot] = &slots_[slot][begin];
        buffers.slots_out[slot] = &slots_out[slot][begin];
      }
      squares += ApplyOptimizer(settings, learning_rate, step, buffers, bounds[part + 1] - begin,
                                GradientClip{}, level);
    }
    values_ = values_out;
    slots_ = slots_out;
    return squares;
  }

  void NewGradients() {
    for (std::vector<float>& gradient : gradients_) gradient = RandomFloats(gradient.size());
  }

  void SetGradients(std::vector<std::vector<float>> gradients) { gradients_ = gradients; }
  void SetGradient(int64_t i, float value) { gradients_[0][i] = value; }

  const std::vector<float>& values() const { return values_; }
  const std::vector<std::vector<float>>& slots() const { return slots_; }
  const std::vector<std::vector<float>>& gradients() const { return gradients_; }

  friend bool operator==(const Trajectory& a, const Trajectory& b) {
    return SameBits(a.values_, b.values_) &&
           std::equal(a.slots_.begin(), a.slots_.end(), b.slots_.begin(), SameBits);
  }

 private:
  static bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  std::vector<float> RandomFloats(size_t n) {
    std::normal_distribution<float> normal;
    std::vector<float> values(n);
    for (float& value : values) value = normal(generator_);
    return values;
  }

  std::mt19937 generator_;
  std::vector<float> values_;
  std::vector<std::vector<float>> slots_;
  std::vector<std::vector<float>> gradients_;
};

// One element in float64, written from the formulas.
struct Reference {
  double p, first = 0, second = 0;

  void Step(const OptimizerSettings& c, double lr, int64_t step, double g) {
    const double t = step + 1;
    if (c.rule == kAdamw) {
      p -= lr * c.weight_decay * p;
    } else {
      g += c.weight_decay * p;
    }
    switch (c.rule) {
      case kSgd:
        p -= lr * g;
        break;
      case kSgdMomentum:
        first = c.momentum * first + g;
        p -= lr * first;
        break;
      case kSgdNesterov:
        first = c.momentum * first + g;
        p -= lr * (g + c.momentum * first);
        break;
      case kAdam:
      case kAdamw: {
        first = c.beta1 * first + (1 - c.beta1) * g;
        second = c.beta2 * second + (1 - c.beta2) * g * g;
        const double m_hat = first / (1 - std::pow(c.beta1, t));
        const double v_hat = second / (1 - std::pow(c.beta2, t));
        p -= lr * m_hat / (std::sqrt(v_hat) + c.epsilon);
        break;
      }
      case kAdagrad:
        first += g * g;
        p -= lr * g / (std::sqrt(first) + c.epsilon);
        break;
      case kRmsprop:
        first = c.alpha * first + (1 - c.alpha) * g * g;
        p -= lr * g / (std::sqrt(first) + c.epsilon);
        break;
    }
  }
};

// A float update makes about ten roundings of 6e-8 each, of terms that are at most some ten times
// the update's or the value's size. Values, gradients and rates here are of order 1, 3 and 0.01, so
// six updates stay within 1e-5 (1 + |p|).
TEST(OptimizerTest, EveryRuleFollowsItsFloat64ReferenceOverOddSizes) {
  for (OptimizerRule rule : kRules) {
    for (int64_t n : {1, 7, 15, 16, 17, 255, 256, 257, 1000}) {
      const OptimizerSettings settings = SettingsOf(rule);
      Trajectory run(n, /*ranks=*/3, /*seed=*/n);
      std::vector<Reference> reference;
      for (float value : run.values()) reference.push_back({value});
      for (int64_t step = 0; step < 6; ++step) {
        double squares = 0;
        for (int64_t i = 0; i < n; ++i) {
          double g = 0;
          for (const auto& gradient : run.gradients()) g += gradient[i];
          squares += g * g;
          reference[i].Step(settings, 0.01 * (step + 1), step, g);
        }
        EXPECT_NEAR(run.Step(settings, 0.01 * (step + 1), step), squares, 1e-5 * (1 + squares));
        run.NewGradients();
      }
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_NEAR(run.values()[i], reference[i].p, 1e-5 * (1 + std::abs(reference[i].p)))
            << "rule " << static_cast<int>(rule) << ", element " << i << " of " << n;
      }
    }
  }
}

struct Published {
  OptimizerSettings settings;
  double p, g0, g1;             // the value and the gradients of two steps
  double after_one, after_two;  // by hand from the update rule in optimizer.h
};

TEST(OptimizerTest, TwoUpdatesEqualTheRulesComputedByHand) {
  const Published cases[] = {
      // 1 - 0.1 (0.5 + 0.1); 0.94 - 0.1 (0.25 + 0.094)
      {{.rule = kSgd, .weight_decay = 0.1}, 1, 0.5, 0.25, 0.94, 0.9056},
      // b = 0.5, 1 - 0.05; b = 0.45 + 0.25 = 0.7, 0.95 - 0.07
      {{.rule = kSgdMomentum, .momentum = 0.9}, 1, 0.5, 0.25, 0.95, 0.88},
      // b = 0.5, 1 - 0.1 (0.5 + 0.45); b = 0.7, 0.905 - 0.1 (0.25 + 0.63)
      {{.rule = kSgdNesterov, .momentum = 0.9}, 1, 0.5, 0.25, 0.905, 0.817},
      // m_hat = 0.5, v_hat = 0.25: the first update is lr; then m_hat = 0.07 / 0.19, v_hat =
      // 0.00031225 / 0.001999
      {{.rule = kAdam, .epsilon = 0}, 1, 0.5, 0.25, 0.9, 0.9 - 0.1 * 0.36842105263 / 0.39522538070},
      // the same and p multiplied by 0.99 before each
      {{.rule = kAdamw, .epsilon = 0, .weight_decay = 0.1},
       1,
       0.5,
       0.25,
       0.89,
       0.89 * 0.99 - 0.1 * 0.36842105263 / 0.39522538070},
      // s = 0.25, 1 - 0.1; s = 0.3125, 0.9 - 0.025 / 0.55901699437
      {{.rule = kAdagrad, .epsilon = 0}, 1, 0.5, 0.25, 0.9, 0.85527864045},
      // s = 0.0025, 1 - 0.05 / 0.05; s = 0.0031, 0 - 0.025 / 0.05567764363
      {{.rule = kRmsprop, .alpha = 0.99, .epsilon = 0}, 1, 0.5, 0.25, 0.0, -0.44901325506},
  };
  for (const Published& c : cases) {
    float p = static_cast<float>(c.p), p_out = 0, slots[2] = {}, slots_out[2] = {};
    for (int64_t step = 0; step < 2; ++step) {
      const float g = static_cast<float>(step == 0 ? c.g0 : c.g1);
      const float* gradient = &g;
      ApplyOptimizer(c.settings, 0.1, step,
                     {.gradients = &gradient,
                      .ranks = 1,
                      .values_in = &p,
                      .values_out = &p_out,
                      .slots_in = {&slots[0], &slots[1]},
                      .slots_out = {&slots_out[0], &slots_out[1]}},
                     1);
      // A few roundings of values up to 1.
      EXPECT_NEAR(p_out, step == 0 ? c.after_one : c.after_two, 5e-7)
          << "rule " << static_cast<int>(c.settings.rule) << ", step " << step;
      p = p_out;
      std::memcpy(slots, slots_out, sizeof(slots));
    }
  }
}

TEST(OptimizerTest, EpsilonIsAddedOutsideTheSquareRoot) {
  float p = 0, p_out = 0, s = 0, s_out = 0;
  const float g = 1;
  const float* gradient = &g;
  ApplyOptimizer({.rule = kAdagrad, .epsilon = 1}, 1.0, 0,
                 {.gradients = &gradient,
                  .ranks = 1,
                  .values_in = &p,
                  .values_out = &p_out,
                  .slots_in = {&s},
                  .slots_out = {&s_out}},
                 1);
  EXPECT_EQ(p_out, -0.5f);
}

TEST(OptimizerTest, CuttingARunAnywhereGivesTheSameBits) {
  constexpr int64_t kElements = 1013;
  for (OptimizerRule rule : kRules) {
    Trajectory whole(kElements, 2, 1), halves(kElements, 2, 1), crumbs(kElements, 2, 1);
    std::vector<int64_t> odd_bounds;
    for (int64_t bound = 0; bound < kElements; bound += 37) odd_bounds.push_back(bound);
    odd_bounds.push_back(kElements);
    for (int64_t step = 0; step < 3; ++step) {
      whole.Step(SettingsOf(rule), 0.02, step);
      halves.StepIn({0, 511, kElements}, SettingsOf(rule), 0.02, step);
      crumbs.StepIn(odd_bounds, SettingsOf(rule), 0.02, step);
    }
    EXPECT_TRUE(whole == halves) << "rule " << static_cast<int>(rule);
    EXPECT_TRUE(whole == crumbs) << "rule " << static_cast<int>(rule);
  }
}

TEST(OptimizerTest, EveryInstructionSetGivesTheSameBits) {
  for (OptimizerRule rule : kRules) {
    Trajectory baseline(1013, 4, 2);
    const double squares = baseline.Step(SettingsOf(rule), 0.02, 5, SimdLevel::kBaseline);
    for (SimdLevel level : {SimdLevel::kAvx2, SimdLevel::kAvx512}) {
      if (level > DetectSimdLevel()) continue;
      Trajectory run(1013, 4, 2);
      EXPECT_EQ(run.Step(SettingsOf(rule), 0.02, 5, level), squares);
      EXPECT_TRUE(run == baseline)
          << "rule " << static_cast<int>(rule) << ", level " << static_cast<int>(level);
    }
  }
}

TEST(OptimizerTest, GradientsAreSummedInRankOrder) {
  // 1e8 + 1 is 1e8 in float, so only this order leaves 1.
  const float gradients[3] = {1e8f, -1e8f, 1.0f};
  const float* pointers[3] = {&gradients[0], &gradients[1], &gradients[2]};
  const float p = 0;
  float p_out = 0;
  EXPECT_EQ(
      ApplyOptimizer({.rule = kSgd}, 1.0, 0,
                     {.gradients = pointers, .ranks = 3, .values_in = &p, .values_out = &p_out}, 1),
      1.0);
  EXPECT_EQ(p_out, -1.0f);
}

TEST(OptimizerTest, NonFiniteGradientsShowInTheSumOfSquares) {
  Trajectory run(33, 1, 3);
  run.SetGradient(32, std::numeric_limits<float>::quiet_NaN());
  EXPECT_FALSE(std::isfinite(run.Step({.rule = kSgd}, 0.1, 0)));
}

TEST(OptimizerTest, AClipScalesThenBoundsTheSumAndReportsItsSquaresUnclipped) {
  const float gradients[2][4] = {{1, -2, 30, 0.5f}, {1, -2, 30, 0.5f}};
  const float* pointers[] = {gradients[0], gradients[1]};
  const float values[4] = {};
  float clipped[4];
  const double squares = ApplyOptimizer(
      {.rule = kSgd}, 1.0, 0,
      {.gradients = pointers, .ranks = 2, .values_in = values, .values_out = clipped}, 4,
      {.factor = 0.5, .limit = 1.5});
  EXPECT_EQ(squares, 4 + 16 + 3600 + 1);
  const float expected[4] = {-1, 1.5f, -1.5f, -0.5f};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(clipped[i], expected[i]);
}

TEST(OptimizerTest, AClipKeepsNaN) {
  const float gradient = std::numeric_limits<float>::quiet_NaN(), value = 0;
  const float* pointer = &gradient;
  float out;
  ApplyOptimizer({.rule = kSgd}, 1.0, 0,
                 {.gradients = &pointer, .ranks = 1, .values_in = &value, .values_out = &out}, 1,
                 {.limit = 1});
  EXPECT_TRUE(std::isnan(out));
}

TEST(OptimizerTest, SumGradientsThenOneRankGivesTheBitsOfTheFusedUpdate) {
  for (int64_t n : {1, 16, 255, 1013}) {
    Trajectory fused(n, 3, 4), apart(n, 3, 4);
    std::vector<const float*> gradients;
    for (const auto& gradient : apart.gradients()) gradients.push_back(gradient.data());
    std::vector<float> sum(n);
    const double squares = SumGradients(sum.data(), gradients.data(), 3, n);
    EXPECT_EQ(fused.Step(SettingsOf(kAdamw), 0.1, 0), squares);
    apart.SetGradients({sum});
    EXPECT_EQ(apart.Step(SettingsOf(kAdamw), 0.1, 0), squares);
    EXPECT_TRUE(fused == apart);
    for (SimdLevel level : {SimdLevel::kBaseline, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
      if (level > DetectSimdLevel()) continue;
      EXPECT_EQ(SumGradients(sum.data(), gradients.data(), 1, n, level),
                SumGradients(sum.data(), gradients.data(), 1, n, SimdLevel::kBaseline));
    }
  }
}

TEST(OptimizerTest, SumGradientsMayOverwriteAnyRank) {
  float a[3] = {1, 2, 3}, b[3] = {10, 20, 30}, c[3] = {100, 200, 300};
  const float* pointers[] = {a, b, c};
  SumGradients(b, pointers, 3, 3);
  EXPECT_EQ(b[0], 111);
  EXPECT_EQ(b[1], 222);
  EXPECT_EQ(b[2], 333);
}

TEST(OptimizerTest, AStatisticMovesTowardsTheRanksSum) {
  for (SimdLevel level : {SimdLevel::kBaseline, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level > DetectSimdLevel()) continue;
    std::vector<float> value(300, 2.0f), a(300, 1.0f), b(300, 3.0f);
    const float* contributions[] = {a.data(), b.data()};
    EXPECT_EQ(ApplyStatistic(value.data(), value.data(), contributions, 2, 0.25, 300, level),
              300 * 16.0);
    for (float v : value) EXPECT_EQ(v, 2.5f);
  }
}

}  // namespace
}  // namespace muster::kernels
