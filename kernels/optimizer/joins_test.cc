// Gradients that are added along a tree.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/conversion_loops.h"
#include "kernels/optimizer/optimizer.h"

namespace muster::kernels::joins_test {
namespace {

using enum OptimizerRule;

constexpr uint32_t kSeed = 41;
constexpr OptimizerRule kRules[] = {kSgd,   kSgdMomentum, kSgdNesterov, kAdam,
                                    kAdamw, kAdagrad,     kRmsprop,     kLamb};

std::vector<SimdLevel> Levels() {
  std::vector<SimdLevel> levels;
  for (SimdLevel level : {SimdLevel::kBaseline, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level <= DetectSimdLevel()) levels.push_back(level);
  }
  return levels;
}

std::vector<float> RandomFloats(int64_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

bool SameBits(const float* a, const float* b, size_t n) {
  return std::equal(a, a + n, b, [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && SameBits(a.data(), b.data(), a.size());
}

// A binary tree over ranks.
class Tree {
 public:
  static Tree Random(int ranks, std::mt19937& random) {
    Tree tree;
    tree.Grow(ranks, kOpenSumsMax, random);
    return tree;
  }

  int ranks() const { return static_cast<int>(joins_.size()); }
  const uint8_t* joins() const { return joins_.data(); }

  // Adds element i of the ranks' gradients, directly from the structure of the tree.
  float Sum(const std::vector<std::vector<float>>& gradients, int64_t i) const {
    return Sum(static_cast<int>(nodes_.size()) - 1, gradients, i);
  }

 private:
  struct Node {
    int left = 0, right = 0;  // of an inner node
    int rank = -1;            // of a leaf
  };

  // Appends a random node over the next `ranks` ranks that needs at most `open` sums, after its
  // children. Returns its index.
  int Grow(int ranks, int open, std::mt19937& random) {
    if (ranks == 1) {
      nodes_.push_back({.rank = this->ranks()});
      joins_.push_back(0);
      return static_cast<int>(nodes_.size()) - 1;
    }
    // The right child is added while the sum of the left one is open.
    const int right_max = open == 2 ? 1 : ranks - 1;
    const int right_ranks = 1 + static_cast<int>(random() % right_max);
    const int left = Grow(ranks - right_ranks, open, random);
    const int right = Grow(right_ranks, open - 1, random);
    ++joins_.back();
    nodes_.push_back({.left = left, .right = right});
    return static_cast<int>(nodes_.size()) - 1;
  }

  float Sum(int node, const std::vector<std::vector<float>>& gradients, int64_t i) const {
    const Node& n = nodes_[node];
    if (n.rank >= 0) return gradients[n.rank][i];
    return Sum(n.left, gradients, i) + Sum(n.right, gradients, i);
  }

  std::vector<Node> nodes_;  // children come before their parent
  std::vector<uint8_t> joins_;
};

// The gradients of some ranks, as they send them, and their sum along a tree.
class Gradients {
 public:
  Gradients(const Tree& tree, const std::vector<FloatType>& types, int64_t n,
            std::mt19937& random) {
    for (int rank = 0; rank < tree.ranks(); ++rank) Add(types[rank], n, random);
    for (int64_t i = 0; i < n; ++i) sum_.push_back(tree.Sum(floats_, i));
  }

  const Gradient* data() const { return gradients_.data(); }
  int ranks() const { return static_cast<int>(gradients_.size()); }
  int64_t elements() const { return static_cast<int64_t>(sum_.size()); }
  const std::vector<float>& sum() const { return sum_; }
  Gradient only() const { return {sum_.data()}; }

 private:
  void Add(FloatType type, int64_t n, std::mt19937& random) {
    std::vector<float>& floats = floats_.emplace_back(RandomFloats(n, random));
    if (type == FloatType::kF32) {
      gradients_.push_back({floats.data()});
      return;
    }
    const ConversionLoops& loops = baseline::kConversionLoops;
    const bool is_bf16 = type == FloatType::kBf16;
    std::vector<uint16_t>& halves = halves_.emplace_back(n);
    (is_bf16 ? loops.f32_to_bf16 : loops.f32_to_finite_f16)(halves.data(), floats.data(), n);
    (is_bf16 ? loops.bf16_to_f32 : loops.f16_to_f32)(floats.data(), halves.data(), n);
    gradients_.push_back({halves.data(), type});
  }

  std::vector<std::vector<float>> floats_;
  std::vector<std::vector<uint16_t>> halves_;
  std::vector<Gradient> gradients_;
  std::vector<float> sum_;
};

// Returns the types of that many ranks: all of one type, and mixed.
std::vector<std::vector<FloatType>> TypesOf(int ranks, std::mt19937& random) {
  constexpr FloatType kTypes[] = {FloatType::kF32, FloatType::kBf16, FloatType::kF16};
  std::vector<std::vector<FloatType>> types;
  for (FloatType type : kTypes) types.emplace_back(ranks, type);
  for (FloatType& type : types.emplace_back(ranks)) type = kTypes[random() % 3];
  return types;
}

TEST(JoinsTest, SumGradientsFollowsEveryTree) {
  std::mt19937 random(kSeed);
  constexpr int64_t kSizes[] = {1, 31, 2048, 2061, 4099, 33};
  bool differs_from_rank_order = false;
  for (int ranks = 1; ranks <= 64; ++ranks) {
    const Tree tree = Tree::Random(ranks, random);
    for (const std::vector<FloatType>& types : TypesOf(ranks, random)) {
      const Gradients gradients(tree, types, kSizes[random() % std::size(kSizes)], random);
      const int64_t n = gradients.elements();
      std::vector<float> sum(n);
      const Gradient only = gradients.only();
      const double squares = SumGradients(sum.data(), &only, 1, n);
      for (SimdLevel level : Levels()) {
        EXPECT_EQ(SumGradients(sum.data(), gradients.data(), ranks, n, tree.joins(), level),
                  squares);
        ASSERT_TRUE(SameBits(sum, gradients.sum()))
            << ranks << " ranks, " << n << " elements, level " << static_cast<int>(level)
            << ", seed " << kSeed;
      }
      SumGradients(sum.data(), gradients.data(), ranks, n);
      if (!SameBits(sum, gradients.sum())) differs_from_rank_order = true;
    }
  }
  EXPECT_TRUE(differs_from_rank_order);
}

TEST(JoinsTest, SumGradientsMayOverwriteAnyRank) {
  float a[3] = {1, 2, 3}, b[3] = {10, 20, 30}, c[3] = {100, 200, 300}, d[3] = {1000, 2000, 3000};
  const Gradient gradients[] = {{a}, {b}, {c}, {d}};
  const uint8_t joins[] = {0, 1, 0, 2};
  SumGradients(c, gradients, 4, 3, joins);
  EXPECT_EQ(std::vector<float>(c, c + 3), (std::vector<float>{1111, 2222, 3333}));
}

TEST(JoinsTest, TheJoinsOfRankOrderGiveItsBits) {
  std::mt19937 random(kSeed);
  for (int ranks : {1, 2, 3, 64, 1000}) {
    std::vector<std::vector<float>> floats;
    std::vector<Gradient> gradients;
    for (int rank = 0; rank < ranks; ++rank) floats.push_back(RandomFloats(100, random));
    for (const std::vector<float>& values : floats) gradients.push_back({values.data()});
    std::vector<uint8_t> joins(ranks, 1);
    joins[0] = 0;
    std::vector<float> along_tree(100), in_order(100);
    SumGradients(along_tree.data(), gradients.data(), ranks, 100, joins.data());
    SumGradients(in_order.data(), gradients.data(), ranks, 100);
    EXPECT_TRUE(SameBits(along_tree, in_order)) << ranks << " ranks, seed " << kSeed;
  }
}

struct Form {
  GradientClip clip;
  FloatType wire = FloatType::kF32;  // f32: no copy for the wire
  Streaming streaming = Streaming::kNothing;
  OutgoingStores stores = OutgoingStores::kDirect;
};
constexpr Form kForms[] = {{},
                           {.clip = {.factor = 0.5, .limit = 0.75}},
                           {.wire = FloatType::kBf16},
                           {.wire = FloatType::kF16, .stores = OutgoingStores::kUnfetched},
                           {.streaming = Streaming::kSlotsAndValues},
                           {.wire = FloatType::kF16, .streaming = Streaming::kSlotsAndValues},
                           {.stores = OutgoingStores::kUnfetched}};

constexpr int64_t kUpdated = 2061;  // a block, a group, and the rest of a group

OptimizerSettings SettingsOf(OptimizerRule rule) {
  return {.rule = rule, .momentum = 0.9, .beta2 = 0.95, .weight_decay = 0.1};
}

// Values and slots, the inputs of an update.
struct Inputs {
  explicit Inputs(std::mt19937& random) : values(RandomFloats(kUpdated, random)) {
    for (std::vector<float>& slot : slots) {
      slot = RandomFloats(kUpdated, random);
      for (float& element : slot) element = std::abs(element);  // some rules take its root
    }
  }

  std::vector<float> values;
  std::vector<float> slots[kOptimizerSlotsMax];
};

// The outputs of an update, in arrays that streaming stores accept.
struct Outputs {
  double squares = 0;
  alignas(64) float values[kUpdated] = {};
  alignas(64) float slots[kOptimizerSlotsMax][(kUpdated + 15) / 16 * 16] = {};
  uint16_t wire[kUpdated] = {};

  bool operator==(const Outputs& other) const {
    return squares == other.squares && SameBits(values, other.values, kUpdated) &&
           SameBits(slots[0], other.slots[0], kUpdated) &&
           SameBits(slots[1], other.slots[1], kUpdated) && std::ranges::equal(wire, other.wire);
  }
};

OptimizerBuffers BuffersOf(OptimizerRule rule, const Inputs& inputs, const Gradient* gradients,
                           int ranks, const uint8_t* joins) {
  OptimizerBuffers buffers{.gradients = gradients,
                           .ranks = ranks,
                           .joins = joins,
                           .values_in = inputs.values.data(),
                           .values_out = nullptr};
  for (int slot = 0; slot < OptimizerSlots(rule); ++slot) {
    buffers.slots_in[slot] = inputs.slots[slot].data();
  }
  return buffers;
}

std::unique_ptr<Outputs> Update(OptimizerRule rule, const Form& form, OptimizerBuffers buffers,
                                SimdLevel level) {
  auto outputs = std::make_unique<Outputs>();
  buffers.values_out = outputs->values;
  for (int slot = 0; slot < OptimizerSlots(rule); ++slot) {
    buffers.slots_out[slot] = outputs->slots[slot];
  }
  if (form.wire != FloatType::kF32) buffers.wire_out = outputs->wire;
  buffers.wire_type = form.wire;
  buffers.streaming = form.streaming;
  buffers.outgoing_stores = form.stores;
  outputs->squares = ApplyOptimizer(SettingsOf(rule), /*learning_rate=*/0.02, /*step=*/3, buffers,
                                    kUpdated, form.clip, level);
  return outputs;
}

// The header promises that the sum as the only rank gives the bits of the fused update.
TEST(JoinsTest, EveryUpdateEqualsThatOfTheTreesSum) {
  std::mt19937 random(kSeed);
  const Inputs inputs(random);
  for (int ranks : {2, 3, 5, 8, 61}) {
    const Tree tree = Tree::Random(ranks, random);
    for (const std::vector<FloatType>& types : TypesOf(ranks, random)) {
      const Gradients gradients(tree, types, kUpdated, random);
      const Gradient only = gradients.only();
      for (OptimizerRule rule : kRules) {
        for (const Form& form : kForms) {
          for (SimdLevel level : Levels()) {
            const auto expected =
                Update(rule, form, BuffersOf(rule, inputs, &only, 1, nullptr), level);
            const auto actual = Update(
                rule, form, BuffersOf(rule, inputs, gradients.data(), ranks, tree.joins()), level);
            ASSERT_TRUE(*actual == *expected)
                << "rule " << static_cast<int>(rule) << ", form " << &form - kForms << ", " << ranks
                << " ranks, level " << static_cast<int>(level) << ", seed " << kSeed;
          }
        }
      }
    }
  }
}

TEST(JoinsTest, DirectionsAndStatisticsFollowTheTree) {
  std::mt19937 random(kSeed);
  const Inputs inputs(random);
  const GradientClip clip{.factor = 0.5, .limit = 0.75};
  for (int ranks : {2, 3, 5, 8, 61}) {
    const Tree tree = Tree::Random(ranks, random);
    for (const std::vector<FloatType>& types : TypesOf(ranks, random)) {
      const Gradients gradients(tree, types, kUpdated, random);
      const Gradient only = gradients.only();
      for (SimdLevel level : Levels()) {
        for (OptimizerRule rule : {kSgd, kLamb}) {
          const auto measure = [&](const OptimizerBuffers& buffers) {
            return MeasureDirection(SettingsOf(rule), /*step=*/3, buffers, kUpdated, clip, level);
          };
          const DirectionSquares expected = measure(BuffersOf(rule, inputs, &only, 1, nullptr));
          const DirectionSquares actual =
              measure(BuffersOf(rule, inputs, gradients.data(), ranks, tree.joins()));
          EXPECT_EQ(actual.values, expected.values);
          EXPECT_EQ(actual.direction, expected.direction) << ranks << " ranks, seed " << kSeed;
        }
        std::vector<float> expected(kUpdated), actual(kUpdated);
        EXPECT_EQ(ApplyStatistic(actual.data(), inputs.values.data(), gradients.data(), ranks, 0.1,
                                 kUpdated, tree.joins(), level),
                  ApplyStatistic(expected.data(), inputs.values.data(), &only, 1, 0.1, kUpdated,
                                 nullptr, level));
        EXPECT_TRUE(SameBits(actual, expected)) << ranks << " ranks, seed " << kSeed;
      }
    }
  }
}

void SumWith(const std::vector<uint8_t>& joins) {
  const float one = 1;
  float sum;
  const std::vector<Gradient> gradients(joins.size(), Gradient{&one});
  SumGradients(&sum, gradients.data(), static_cast<int>(joins.size()), 1, joins.data());
}

TEST(JoinsDeathTest, JoinsMustLeaveOneSumWithinTheLimit) {
  std::vector<uint8_t> deepest(kOpenSumsMax);
  deepest.back() = kOpenSumsMax - 1;
  SumWith(deepest);
  deepest.insert(deepest.begin(), 0);
  ++deepest.back();
  EXPECT_DEATH(SumWith(deepest), "joins.12. of 13 ranks is 12, with 13 sums of at most 12");
  EXPECT_DEATH(SumWith({0, 1, 0}), "the joins of 3 ranks leave 2 sums instead of 1");
  EXPECT_DEATH(SumWith({0, 2}), "joins.1. of 2 ranks is 2");
  EXPECT_DEATH(SumWith({1, 1}), "joins.0. of 2 ranks is 1");
}

}  // namespace
}  // namespace muster::kernels::joins_test
