#include "kernels/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/conversion_loops.h"

namespace muster::kernels::optimizer_test {
namespace {

using enum OptimizerRule;

constexpr OptimizerRule kRules[] = {kSgd,   kSgdMomentum, kSgdNesterov, kAdam,
                                    kAdamw, kAdagrad,     kRmsprop,     kLamb};
constexpr FloatType kTypes[] = {FloatType::kF32, FloatType::kBf16, FloatType::kF16};

std::vector<SimdLevel> Levels() {
  std::vector<SimdLevel> levels;
  for (SimdLevel level : {SimdLevel::kBaseline, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level <= DetectSimdLevel()) levels.push_back(level);
  }
  return levels;
}

// Returns settings for a rule. Rules with a trust ratio get one.
OptimizerSettings SettingsOf(OptimizerRule rule) {
  const bool has_trust = rule == kSgd || rule == kSgdMomentum || rule == kLamb;
  return {.rule = rule,
          .momentum = 0.9,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .weight_decay = 0.1,
          .trust_ratio = has_trust ? 0.7 : 1};
}

// Returns the values as a rank would send them in 16 bits.
std::vector<uint16_t> Halves(const std::vector<float>& values, FloatType type) {
  std::vector<uint16_t> halves(values.size());
  const ConversionLoops& loops = baseline::kConversionLoops;
  (type == FloatType::kBf16 ? loops.f32_to_bf16 : loops.f32_to_finite_f16)(
      halves.data(), values.data(), values.size());
  return halves;
}

std::vector<float> Rounded(std::vector<float> values, FloatType type) {
  if (type == FloatType::kF32) return values;
  const std::vector<uint16_t> halves = Halves(values, type);
  const ConversionLoops& loops = baseline::kConversionLoops;
  (type == FloatType::kBf16 ? loops.bf16_to_f32 : loops.f16_to_f32)(values.data(), halves.data(),
                                                                    values.size());
  return values;
}

// Values, slots and the gradients of some ranks; Step() moves to the next version.
class Trajectory {
 public:
  Trajectory(int64_t n, int ranks, uint32_t seed)
      : Trajectory(n, std::vector<FloatType>(ranks, FloatType::kF32), seed) {}
  // Makes one rank for each type.
  Trajectory(int64_t n, std::vector<FloatType> types, uint32_t seed)
      : generator_(seed), types_(std::move(types)), gradients_(types_.size()) {
    values_ = RandomFloats(n);
    slots_.assign(kOptimizerSlotsMax, std::vector<float>(n));
    NewGradients();
  }

  double Step(const OptimizerSettings& settings, double learning_rate, int64_t step,
              SimdLevel level = DetectSimdLevel()) {
    const int64_t n = values_.size();
    return StepIn({0, n}, settings, learning_rate, step, level);
  }

  // Makes the same step in several calls, each for elements [bounds[i], bounds[i + 1]).
  double StepIn(std::vector<int64_t> bounds, const OptimizerSettings& settings,
                double learning_rate, int64_t step, SimdLevel level = DetectSimdLevel()) {
    std::vector<float> values_out(values_.size());
    std::vector<std::vector<float>> slots_out(slots_.size(), std::vector<float>(values_.size()));
    double squares = 0;
    for (size_t part = 0; part + 1 < bounds.size(); ++part) {
      const int64_t begin = bounds[part];
      std::vector<Gradient> gradients;
      std::vector<std::vector<uint16_t>> halves;
      for (size_t rank = 0; rank < types_.size(); ++rank) {
        gradients.push_back({&gradients_[rank][begin], types_[rank]});
        if (types_[rank] == FloatType::kF32) continue;
        halves.push_back(Halves(gradients_[rank], types_[rank]));
        gradients.back().elements = &halves.back()[begin];
      }
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
    for (size_t rank = 0; rank < types_.size(); ++rank) {
      gradients_[rank] = Rounded(RandomFloats(values_.size()), types_[rank]);
    }
  }

  void SetGradients(std::vector<std::vector<float>> gradients) {
    gradients_ = gradients;
    types_.assign(gradients_.size(), FloatType::kF32);
  }
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
  std::vector<FloatType> types_;  // one per rank
  std::vector<float> values_;
  std::vector<std::vector<float>> slots_;
  // One per rank, of numbers that the rank's type can represent.
  std::vector<std::vector<float>> gradients_;
};

// One element in float64, computed directly from the formulas.
struct Reference {
  double p, first = 0, second = 0;

  void Step(const OptimizerSettings& c, double lr, int64_t step, double g) {
    const double t = step + 1;
    if (c.rule == kAdamw) {
      p -= lr * c.weight_decay * p;
    } else if (c.rule != kLamb) {
      g = c.trust_ratio * (g + c.weight_decay * p);
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
      case kAdamw:
        MoveMoments(c, g);
        p -= lr * AdamDirection(c, t);
        break;
      case kLamb:
        MoveMoments(c, g);
        p -= lr * c.trust_ratio * (AdamDirection(c, t) + c.weight_decay * p);
        break;
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

  void MoveMoments(const OptimizerSettings& c, double g) {
    first = c.beta1 * first + (1 - c.beta1) * g;
    second = c.beta2 * second + (1 - c.beta2) * g * g;
  }

  double AdamDirection(const OptimizerSettings& c, double t) const {
    const double m_hat = first / (1 - std::pow(c.beta1, t));
    const double v_hat = second / (1 - std::pow(c.beta2, t));
    return m_hat / (std::sqrt(v_hat) + c.epsilon);
  }
};

// A float update makes about ten roundings of 6e-8 each. The terms are at most about ten times
// larger than the update or the value. Values, gradients and rates here are of order 1, 3 and 0.01,
// so six updates stay within 1e-5 (1 + |p|).
void FollowsItsReference(OptimizerRule rule, const std::vector<FloatType>& types, int64_t n,
                         SimdLevel level) {
  const OptimizerSettings settings = SettingsOf(rule);
  Trajectory run(n, types, /*seed=*/n);
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
    EXPECT_NEAR(run.Step(settings, 0.01 * (step + 1), step, level), squares, 1e-5 * (1 + squares));
    run.NewGradients();
  }
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_NEAR(run.values()[i], reference[i].p, 1e-5 * (1 + std::abs(reference[i].p)))
        << "rule " << static_cast<int>(rule) << ", element " << i << " of " << n << ", "
        << types.size() << " ranks, level " << static_cast<int>(level);
  }
}

TEST(OptimizerTest, EveryRuleFollowsItsFloat64ReferenceOverOddSizes) {
  for (OptimizerRule rule : kRules) {
    for (int64_t n : {1, 7, 15, 16, 17, 511, 512, 513, 1100}) {
      for (SimdLevel level : Levels()) {
        FollowsItsReference(rule, {FloatType::kF32, FloatType::kF32, FloatType::kF32}, n, level);
      }
    }
  }
}

TEST(OptimizerTest, EveryRuleTakesGradientsOfEveryTypeAndMixed) {
  for (OptimizerRule rule : kRules) {
    for (SimdLevel level : Levels()) {
      for (FloatType type : kTypes) {
        FollowsItsReference(rule, {type}, 2061, level);
        FollowsItsReference(rule, {type, type}, 33, level);
      }
      FollowsItsReference(rule, {FloatType::kBf16, FloatType::kF32, FloatType::kF16}, 2061, level);
      FollowsItsReference(rule, {FloatType::kF16, FloatType::kBf16}, 2061, level);
    }
  }
}

struct Published {
  OptimizerSettings settings;
  double p, g0, g1;             // the value and the gradients of two steps
  double after_one, after_two;  // by hand from the update rule in optimizer.h
};

// The comments of the cases compute the value after the first and after the second update, with a
// learning rate of 0.1.
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
      // as kAdam, with p multiplied by 0.99 before each update
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
      const Gradient gradient{&g};
      ApplyOptimizer(c.settings, 0.1, step,
                     {.gradients = &gradient,
                      .ranks = 1,
                      .values_in = &p,
                      .values_out = &p_out,
                      .slots_in = {&slots[0], &slots[1]},
                      .slots_out = {&slots_out[0], &slots_out[1]}},
                     1);
      // The tolerance covers a few roundings of values up to 1.
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
  const Gradient gradient{&g};
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
  constexpr int64_t kElements = 2063;
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
  const std::vector<FloatType> ranks[] = {
      {FloatType::kF32},
      {FloatType::kBf16},
      {FloatType::kF16},
      {FloatType::kF32, FloatType::kBf16, FloatType::kF16, FloatType::kF32}};
  for (OptimizerRule rule : kRules) {
    for (const std::vector<FloatType>& types : ranks) {
      Trajectory baseline(2063, types, 2);
      const double squares = baseline.Step(SettingsOf(rule), 0.02, 5, SimdLevel::kBaseline);
      for (SimdLevel level : Levels()) {
        Trajectory run(2063, types, 2);
        EXPECT_EQ(run.Step(SettingsOf(rule), 0.02, 5, level), squares);
        EXPECT_TRUE(run == baseline)
            << "rule " << static_cast<int>(rule) << ", level " << static_cast<int>(level);
      }
    }
  }
}

// An update rounds values for the wire. The codec rounds values that no update has rounded. Both
// must give the same result, or values would differ after a restore.
TEST(OptimizerTest, ValuesBeyondHalfPrecisionGoOutAsItsLargest) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> values(300, 1);
  values[7] = 70'000;
  values[290] = -1e30f;
  values[291] = 65'519;  // rounds to 65,504 anyway
  values[292] = -inf;
  const std::vector<float> zeros(values.size());
  const Gradient gradient{zeros.data()};
  for (SimdLevel level : Levels()) {
    std::vector<float> updated(values.size());
    std::vector<uint16_t> wire(values.size());
    ApplyOptimizer(SettingsOf(kSgd), /*learning_rate=*/0, 0,
                   {.gradients = &gradient,
                    .ranks = 1,
                    .values_in = values.data(),
                    .values_out = updated.data(),
                    .wire_out = wire.data(),
                    .wire_type = FloatType::kF16},
                   static_cast<int64_t>(values.size()), {}, level);
    EXPECT_EQ(updated[7], 70'000);
    EXPECT_EQ(wire[0], 0x3C00);
    EXPECT_EQ(wire[7], 0x7BFF);
    EXPECT_EQ(wire[290], 0xFBFF);
    EXPECT_EQ(wire[291], 0x7BFF);
    EXPECT_EQ(wire[292] & 0x7C00, 0x7C00) << "an infinite value must stay visible";
  }
}

TEST(OptimizerTest, TheCopyForTheWireDoesNotDependOnHowItIsStored) {
  constexpr int64_t kElements = 2061;
  struct Way {
    Streaming streaming;
    OutgoingStores stores = OutgoingStores::kDirect;
  };
  const Way ways[] = {{Streaming::kNothing},
                      {Streaming::kSlots},
                      {Streaming::kSlotsAndValues},
                      {Streaming::kNothing, OutgoingStores::kUnfetched},
                      {Streaming::kSlotsAndValues, OutgoingStores::kUnfetched}};
  struct alignas(64) Outputs {
    float values[kElements];
    alignas(64) float slots[2][(kElements + 15) / 16 * 16];
    uint16_t wire[kElements];
  };
  for (OptimizerRule rule : kRules) {
    Trajectory expected(kElements, 2, 7), inputs(kElements, 2, 7);
    expected.Step(SettingsOf(rule), 0.02, 0);
    for (SimdLevel level : Levels()) {
      for (FloatType wire : kTypes) {  // f32: no copy for the wire
        for (const Way& way : ways) {
          auto outputs = std::make_unique<Outputs>();
          const Gradient gradients[] = {{inputs.gradients()[0].data()},
                                        {inputs.gradients()[1].data()}};
          OptimizerBuffers buffers{.gradients = gradients,
                                   .ranks = 2,
                                   .values_in = inputs.values().data(),
                                   .values_out = outputs->values,
                                   .wire_out = wire == FloatType::kF32 ? nullptr : outputs->wire,
                                   .wire_type = wire,
                                   .streaming = way.streaming,
                                   .outgoing_stores = way.stores};
          for (int slot = 0; slot < OptimizerSlots(rule); ++slot) {
            buffers.slots_in[slot] = inputs.slots()[slot].data();
            buffers.slots_out[slot] = outputs->slots[slot];
          }
          ApplyOptimizer(SettingsOf(rule), 0.02, 0, buffers, kElements, {}, level);
          const std::vector<float> values(outputs->values, outputs->values + kElements);
          EXPECT_EQ(values, expected.values());
          for (int slot = 0; slot < OptimizerSlots(rule); ++slot) {
            EXPECT_EQ(std::vector<float>(outputs->slots[slot], outputs->slots[slot] + kElements),
                      expected.slots()[slot]);
          }
          if (wire == FloatType::kF32) continue;
          EXPECT_EQ(std::vector<uint16_t>(outputs->wire, outputs->wire + kElements),
                    Halves(values, wire));
        }
      }
    }
  }
}

// The tolerance covers sums of at most 4000 squares of order 1, each of a float with a few
// roundings of 6e-8.
TEST(OptimizerTest, MeasureDirectionAgreesWithTheUpdate) {
  for (OptimizerRule rule : {kSgd, kSgdMomentum, kLamb}) {
    for (int64_t n : {1, 17, 2049, 2061}) {
      const OptimizerSettings settings = SettingsOf(rule);
      Trajectory run(n, {FloatType::kF32, FloatType::kBf16}, n);
      run.Step(settings, 0.02, 0);  // makes the slots nonzero
      const std::vector<uint16_t> halves = Halves(run.gradients()[1], FloatType::kBf16);
      const Gradient gradients[] = {{run.gradients()[0].data()}, {halves.data(), FloatType::kBf16}};
      const OptimizerBuffers buffers{.gradients = gradients,
                                     .ranks = 2,
                                     .values_in = run.values().data(),
                                     .values_out = nullptr,
                                     .slots_in = {run.slots()[0].data(), run.slots()[1].data()}};
      const GradientClip clip{.factor = 0.25, .limit = 0.5};
      double values = 0, direction = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double p = run.values()[i];
        double along =
            std::clamp(0.25 * (double{run.gradients()[0][i]} + run.gradients()[1][i]), -0.5, 0.5);
        if (rule == kLamb) {
          Reference element{p, run.slots()[0][i], run.slots()[1][i]};
          element.MoveMoments(settings, along);
          along = element.AdamDirection(settings, /*t=*/2) + settings.weight_decay * p;
        }
        values += p * p;
        direction += along * along;
      }
      for (SimdLevel level : Levels()) {
        const DirectionSquares squares =
            MeasureDirection(settings, /*step=*/1, buffers, n, clip, level);
        EXPECT_NEAR(squares.values, values, 1e-6 * values);
        EXPECT_NEAR(squares.direction, direction, 1e-6 * direction);
        const DirectionSquares baseline =
            MeasureDirection(settings, 1, buffers, n, clip, SimdLevel::kBaseline);
        EXPECT_EQ(squares.values, baseline.values);
        EXPECT_EQ(squares.direction, baseline.direction);
      }
    }
  }
}

TEST(OptimizerTest, GradientsAreSummedInRankOrder) {
  // 1e8 + 1 is 1e8 in float, so only rank order gives 1.
  const float gradients[3] = {1e8f, -1e8f, 1.0f};
  const Gradient pointers[] = {{&gradients[0]}, {&gradients[1]}, {&gradients[2]}};
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

TEST(OptimizerTest, AClipScalesAndBoundsTheSumButNotItsSquares) {
  const float gradients[2][4] = {{1, -2, 30, 0.5f}, {1, -2, 30, 0.5f}};
  const Gradient pointers[] = {{gradients[0]}, {gradients[1]}};
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
  const Gradient pointer{&gradient};
  float out;
  ApplyOptimizer({.rule = kSgd}, 1.0, 0,
                 {.gradients = &pointer, .ranks = 1, .values_in = &value, .values_out = &out}, 1,
                 {.limit = 1});
  EXPECT_TRUE(std::isnan(out));
}

TEST(OptimizerTest, SumGradientsThenOneRankEqualsTheFusedUpdate) {
  for (int64_t n : {1, 16, 255, 2063}) {
    Trajectory fused(n, 3, 4), apart(n, 3, 4);
    std::vector<Gradient> gradients;
    for (const auto& gradient : apart.gradients()) gradients.push_back({gradient.data()});
    std::vector<float> sum(n);
    const double squares = SumGradients(sum.data(), gradients.data(), 3, n);
    EXPECT_EQ(fused.Step(SettingsOf(kAdamw), 0.1, 0), squares);
    apart.SetGradients({sum});
    EXPECT_EQ(apart.Step(SettingsOf(kAdamw), 0.1, 0), squares);
    EXPECT_TRUE(fused == apart);
    for (SimdLevel level : Levels()) {
      EXPECT_EQ(SumGradients(sum.data(), gradients.data(), 1, n, nullptr, level),
                SumGradients(sum.data(), gradients.data(), 1, n, nullptr, SimdLevel::kBaseline));
    }
  }
}

TEST(OptimizerTest, SumGradientsMayOverwriteAnyRank) {
  float a[3] = {1, 2, 3}, b[3] = {10, 20, 30}, c[3] = {100, 200, 300};
  const Gradient pointers[] = {{a}, {b}, {c}};
  SumGradients(b, pointers, 3, 3);
  EXPECT_EQ(b[0], 111);
  EXPECT_EQ(b[1], 222);
  EXPECT_EQ(b[2], 333);
}

// A receive buffer has room for f32, and its 16-bit payload is at its end.
TEST(OptimizerTest, SumGradientsWidensAGradientOverItsOwnBuffer) {
  for (SimdLevel level : Levels()) {
    for (FloatType type : {FloatType::kBf16, FloatType::kF16}) {
      for (int64_t n : {1, 16, 513, 2048}) {
        std::vector<float> values(n), buffer(n), other(n, 0.5f);
        for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(i % 128) - 60;
        const std::vector<uint16_t> halves = Halves(values, type);
        void* const payload = reinterpret_cast<char*>(buffer.data()) + 2 * n;
        std::memcpy(payload, halves.data(), 2 * n);
        const Gradient gradients[] = {{payload, type}, {other.data()}};
        SumGradients(buffer.data(), gradients, 2, n, nullptr, level);
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(buffer[i], values[i] + 0.5f) << i;
      }
    }
  }
}

TEST(OptimizerTest, AStatisticMovesTowardsTheRanksSum) {
  for (SimdLevel level : Levels()) {
    std::vector<float> value(300, 2.0f), a(300, 1.0f), b(300, 3.0f);
    const Gradient contributions[] = {{a.data()}, {b.data()}};
    EXPECT_EQ(
        ApplyStatistic(value.data(), value.data(), contributions, 2, 0.25, 300, nullptr, level),
        300 * 16.0);
    for (float v : value) EXPECT_EQ(v, 2.5f);
  }
}

}  // namespace
}  // namespace muster::kernels::optimizer_test
