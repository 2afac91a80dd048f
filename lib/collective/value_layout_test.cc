#include "lib/collective/value_layout.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/collective/gradient_layout.h"

namespace muster::value_layout_test {
namespace {

using ::testing::ElementsAre;

GradientLayout GradientsOf(const std::vector<DeviceValues>& values, int world_size,
                           const BucketSizes& sizes = {}) {
  std::vector<int64_t> elements;
  for (const DeviceValues& of : values) elements.push_back(of.elements);
  std::vector<int> order(values.size());
  std::iota(order.rbegin(), order.rend(), 0);
  return LayOutGradients(elements, order, world_size, sizes);
}

DeviceValues Bf16(int64_t elements) { return {elements, 2, elements * 2}; }
DeviceValues F32(int64_t elements) { return {elements, 4, elements * 4}; }

TEST(ValueLayoutTest, ASliceEndsInTheMiddleOfAParameter) {
  const std::vector<DeviceValues> values = {F32(64), Bf16(1000)};
  const ValueLayout layout = LayOutValues(GradientsOf(values, 2), values, 2);
  // 2,000 bytes of parameter 1 become 2,048, then come 256 of parameter 0; the sum becomes 2,560.
  EXPECT_THAT(layout.offsets, ElementsAre(2048, 0));
  ASSERT_EQ(layout.buckets.size(), 1);
  EXPECT_EQ(layout.buckets[0].bytes, 2560);
  EXPECT_EQ(layout.bytes, 2560);
  EXPECT_THAT(layout.buckets[0].slices,
              ElementsAre(ElementsAre(ValueRange{1, 0, 640}),
                          ElementsAre(ValueRange{1, 640, 360}, ValueRange{0, 0, 64})));
}

TEST(ValueLayoutTest, PaddingIsMemoryButNoRank) {
  const std::vector<DeviceValues> values = {{.elements = 100, .width = 2, .bytes = 1024}};
  const ValueLayout layout = LayOutValues(GradientsOf(values, 4), values, 4);
  EXPECT_EQ(layout.bytes, 1024);
  EXPECT_THAT(layout.buckets[0].slices, ElementsAre(ElementsAre(ValueRange{0, 0, 100}),
                                                    ElementsAre(), ElementsAre(), ElementsAre()));
}

// The ranks' slices together have every element once, at its place, for every number of ranks.
TEST(ValueLayoutTest, SlicesOfAllRanksCoverEveryElementOnce) {
  constexpr int kSeed = 42;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (const int world_size : {1, 2, 3, 8}) {
    std::vector<DeviceValues> values;
    for (int p = 0; p < 40; ++p) {
      const int64_t elements = std::uniform_int_distribution<int64_t>(0, 3000)(random);
      values.push_back(p % 3 == 0 ? F32(elements) : Bf16(elements));
      if (p % 5 == 0) values.back().bytes += 2 * values.back().width;
    }
    const GradientLayout gradients =
        GradientsOf(values, world_size, {.first_bytes = 4096, .bytes = 32768});
    const ValueLayout layout = LayOutValues(gradients, values, world_size);
    ASSERT_GT(layout.buckets.size(), 3);
    ASSERT_EQ(layout.buckets.size(), gradients.buckets.size());
    std::vector<std::vector<int>> seen;
    for (const DeviceValues& of : values) seen.emplace_back(of.elements);
    for (size_t b = 0; b < layout.buckets.size(); ++b) {
      const ValueLayout::Bucket& bucket = layout.buckets[b];
      const int64_t slice = bucket.bytes / world_size;
      ASSERT_EQ(slice * world_size, bucket.bytes);
      ASSERT_EQ(bucket.slices.size(), static_cast<size_t>(world_size));
      for (int rank = 0; rank < world_size; ++rank) {
        for (const ValueRange& range : bucket.slices[rank]) {
          const int p = range.parameter;
          EXPECT_EQ(gradients.bucket_of[p], static_cast<int>(b));
          const int64_t begin = layout.offsets[p] + range.first * values[p].width;
          EXPECT_GE(begin, bucket.begin + rank * slice);
          EXPECT_LE(begin + range.count * values[p].width, bucket.begin + (rank + 1) * slice);
          for (int64_t i = range.first; i < range.first + range.count; ++i) ++seen[p][i];
        }
      }
    }
    for (const std::vector<int>& counts : seen) {
      EXPECT_EQ(std::ranges::count(counts, 1), std::ssize(counts));
    }
    // Parameters do not overlap, because their ends are in order.
    for (size_t b = 0; b < layout.buckets.size(); ++b) {
      int64_t end = layout.buckets[b].begin;
      for (const int p : gradients.buckets[b].parameters) {
        EXPECT_EQ(layout.offsets[p] % 256, 0);
        EXPECT_GE(layout.offsets[p], end);
        end = layout.offsets[p] + values[p].bytes;
      }
      EXPECT_LE(end, layout.buckets[b].begin + layout.buckets[b].bytes);
    }
  }
}

// Besides 4 bytes of gradients a bf16 parameter takes 2 bytes of values, with 8 GPUs as with one.
TEST(ValueLayoutTest, Bf16ValuesTakeTwoBytesAParameter) {
  constexpr int64_t kWidth = 768;
  std::vector<DeviceValues> values = {Bf16(50257 * kWidth)};
  values[0].bytes = 50304 * kWidth * 2;  // padded
  for (int layer = 0; layer < 12; ++layer) {
    for (const int64_t elements : {3 * kWidth * kWidth, kWidth * kWidth, 8 * kWidth * kWidth}) {
      values.push_back(Bf16(elements));
      values.push_back(Bf16(kWidth));
    }
  }
  const GradientLayout gradients = GradientsOf(values, 8);
  const ValueLayout layout = LayOutValues(gradients, values, 8);
  EXPECT_LE(static_cast<double>(layout.bytes), 2.005 * static_cast<double>(gradients.elements));
}

}  // namespace
}  // namespace muster::value_layout_test
