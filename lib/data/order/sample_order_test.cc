#include "lib/data/order/sample_order.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace muster::sample_order_test {
namespace {

constexpr uint64_t kSeed = 7;

std::vector<int64_t> Order(uint64_t seed, int64_t epoch, int64_t n) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < n; ++i) order.push_back(PermutedSample(seed, epoch, n, i));
  return order;
}

bool IsPermutation(std::vector<int64_t> order) {
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

TEST(SampleOrderTest, EverySampleOccursOnce) {
  for (int64_t n = 1; n <= 300; ++n) EXPECT_TRUE(IsPermutation(Order(kSeed, 3, n))) << n;
  for (int64_t n : {1021, 1024, 1025, 4095, 4096, 65536, 65537, 99991}) {
    EXPECT_TRUE(IsPermutation(Order(kSeed, 0, n))) << n;
  }
}

TEST(SampleOrderTest, HugeDomainsStayInside) {
  for (int64_t n : {int64_t{1} << 40, (int64_t{1} << 40) + 1, (int64_t{1} << 62) + 5}) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 1000; ++i) {
      const int64_t sample = PermutedSample(kSeed, 1, n, n - 1 - i);
      EXPECT_TRUE(0 <= sample && sample < n);
      EXPECT_TRUE(seen.insert(sample).second);
    }
  }
}

TEST(SampleOrderTest, DiffersByEpochAndBySeed) {
  const std::vector<int64_t> order = Order(kSeed, 0, 1000);
  EXPECT_EQ(order, Order(kSeed, 0, 1000));
  EXPECT_NE(order, Order(kSeed, 1, 1000));
  EXPECT_NE(order, Order(kSeed + 1, 0, 1000));
  EXPECT_NE(order, Order(kSeed + (uint64_t{1} << 32), 0, 1000));
}

TEST(SampleOrderTest, LooksShuffled) {
  // Of n samples about one is expected at its own position, and about half are ascending
  // neighbours.
  int fixed = 0, ascending = 0;
  constexpr int kEpochs = 20, kSamples = 1000;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const std::vector<int64_t> order = Order(kSeed, epoch, kSamples);
    for (int i = 0; i < kSamples; ++i) {
      fixed += order[i] == i;
      ascending += i > 0 && order[i - 1] < order[i];
    }
  }
  EXPECT_LT(fixed, 3 * kEpochs);
  EXPECT_NEAR(ascending, kEpochs * kSamples / 2, 500);
}

TEST(SampleOrderTest, SmallDomainsHaveEveryOrderAboutEquallyOften) {
  std::map<std::vector<int64_t>, int> times;
  constexpr int kEpochs = 6000;
  for (int epoch = 0; epoch < kEpochs; ++epoch) ++times[Order(kSeed, epoch, 3)];
  EXPECT_EQ(times.size(), 6);
  for (const auto& [order, count] : times) EXPECT_NEAR(count, kEpochs / 6, 200);
}

TEST(SampleOrderTest, SharesTileTheBatch) {
  constexpr int64_t kSamples = 103, kBatch = 10;
  for (int64_t step : {0, 7, 9, 10, 25}) {
    const std::vector<SampleRef> whole = SamplesOfStep(kSeed, kSamples, kBatch, step, 0, kBatch);
    std::vector<SampleRef> together;
    for (auto [first, count] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 4}, {4, 3}, {7, 3}, {10, 0}}) {
      const std::vector<SampleRef> share =
          SamplesOfStep(kSeed, kSamples, kBatch, step, first, count);
      together.insert(together.end(), share.begin(), share.end());
    }
    EXPECT_EQ(together, whole) << "step " << step;
    EXPECT_EQ(whole[0].epoch, step / 10);
  }
}

TEST(SampleOrderTest, AnEpochUsesEverySampleOnceExceptTheRemainder) {
  constexpr int64_t kSamples = 103, kBatch = 10;
  for (int64_t epoch : {0, 1, 5}) {
    std::set<int64_t> seen;
    for (int64_t step = epoch * 10; step < (epoch + 1) * 10; ++step) {
      for (const auto [at, sample] : SamplesOfStep(kSeed, kSamples, kBatch, step, 0, kBatch)) {
        EXPECT_EQ(at, epoch);
        EXPECT_TRUE(0 <= sample && sample < kSamples);
        EXPECT_TRUE(seen.insert(sample).second) << sample << " twice in epoch " << epoch;
      }
    }
    EXPECT_EQ(seen.size(), 100);
  }
}

TEST(SampleOrderTest, OrderIsStableAcrossVersions) {
  // Checkpoints rely on this order: with another one a resumed job would train differently.
  EXPECT_EQ(Order(7, 0, 10), (std::vector<int64_t>{1, 4, 8, 2, 5, 6, 0, 9, 7, 3}));
}

}  // namespace
}  // namespace muster::sample_order_test
