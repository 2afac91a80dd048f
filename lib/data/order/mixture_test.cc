#include "lib/data/order/mixture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace muster::mixture_test {
namespace {

TEST(MixtureTest, WeightsBecomeSlotsByTheLargestRemainder) {
  EXPECT_EQ(*Mixture::SlotsOf({1, 1}), (std::vector<int64_t>{32768, 32768}));
  // 0.2 has the fraction 0.2, 0.7 has 0.2, 0.1 has 0.6.
  EXPECT_EQ(*Mixture::SlotsOf({2, 7, 1}), (std::vector<int64_t>{13107, 45875, 6554}));
  EXPECT_EQ(*Mixture::SlotsOf({1, 1, 1}), (std::vector<int64_t>{21846, 21845, 21845}));
  EXPECT_EQ(*Mixture::SlotsOf({1e308, 1e308, 1e308}), *Mixture::SlotsOf({1, 1, 1}));
  EXPECT_EQ(*Mixture::SlotsOf(std::vector<double>(64, 0.3)), std::vector<int64_t>(64, 1024));
}

TEST(MixtureTest, RejectsWeightsWithoutASlot) {
  for (const double weight :
       {0.0, -1.0, 1e-9, std::nan(""), std::numeric_limits<double>::infinity()}) {
    const absl::Status status = Mixture::SlotsOf({1, weight}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << weight;
    EXPECT_EQ(status.message().substr(0, 30), "data.mixture.parts[1].weight: ") << status;
  }
}

TEST(MixtureTest, ARoundHasTheSlotsOfEachPartAndNumbersThemInOrder) {
  const std::vector<int64_t> slots = *Mixture::SlotsOf({2, 7, 1});
  const Mixture mixture(7, slots);
  std::vector<int64_t> given(3);
  for (int64_t position = 0; position < 3 * Mixture::kSlots; ++position) {
    const Mixture::Draw draw = mixture.At(position);
    ASSERT_EQ(draw.number, given[draw.part]++) << position;
    if ((position + 1) % Mixture::kSlots != 0) continue;
    const int64_t rounds = (position + 1) / Mixture::kSlots;
    for (int part = 0; part < 3; ++part) EXPECT_EQ(given[part], rounds * slots[part]);
  }
  const Mixture::Draw far = mixture.At((int64_t{1} << 50) + 5);
  EXPECT_EQ(far.part, mixture.At(5).part);
  EXPECT_EQ(far.number, (int64_t{1} << 34) * slots[far.part] + mixture.At(5).number);
}

TEST(MixtureTest, EveryRunHasAboutTheShareOfEachPart) {
  for (const auto& weights : std::vector<std::vector<double>>{
           {1, 1}, {2, 7, 1}, {0.01, 0.99}, {3, 1, 4, 1, 5, 9, 2, 6}}) {
    const std::vector<int64_t> slots = *Mixture::SlotsOf(weights);
    const Mixture mixture(3, slots);
    std::vector<double> ahead(slots.size()), least(slots.size()), most(slots.size());
    for (int64_t position = 0; position < Mixture::kSlots; ++position) {
      const int part = mixture.At(position).part;
      for (size_t i = 0; i < slots.size(); ++i) {
        ahead[i] += (static_cast<int>(i) == part) - static_cast<double>(slots[i]) / Mixture::kSlots;
        least[i] = std::min(least[i], ahead[i]);
        most[i] = std::max(most[i], ahead[i]);
      }
    }
    for (size_t i = 0; i < slots.size(); ++i) EXPECT_LT(most[i] - least[i], 6) << "part " << i;
  }
}

TEST(MixtureTest, TheSeedMovesTheRound) {
  const std::vector<int64_t> slots = *Mixture::SlotsOf({2, 7, 1});
  const auto start = [&](uint64_t seed) {
    std::vector<int> parts;
    for (int i = 0; i < 100; ++i) parts.push_back(Mixture(seed, slots).At(i).part);
    return parts;
  };
  EXPECT_EQ(start(1), start(1));
  EXPECT_NE(start(1), start(2));
}

TEST(MixtureTest, OnePartGivesEverySample) {
  const Mixture mixture(1, {Mixture::kSlots});
  EXPECT_EQ(mixture.At(65535).number, 65535);
  EXPECT_EQ(mixture.At(65536).number, 65536);
}

}  // namespace
}  // namespace muster::mixture_test
