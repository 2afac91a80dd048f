#include "lib/collective/gradient_layout.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::gradient_layout_test {
namespace {

using ::testing::ElementsAre;

TEST(GradientLayoutTest, TheFirstBucketIsSmallAndTheOthersAreLarge) {
  const std::vector<int64_t> elements = {100, 200, 300, 400, 500, 4000};
  const std::vector<int> order = {5, 4, 3, 2, 1, 0};
  const GradientLayout layout =
      LayOutGradients(elements, order, 1, {.first_bytes = 4096, .bytes = 4000});
  ASSERT_EQ(layout.buckets.size(), 3);
  EXPECT_THAT(layout.buckets[0].parameters, ElementsAre(5));  // larger than any bucket
  EXPECT_THAT(layout.buckets[1].parameters, ElementsAre(4, 3));
  EXPECT_THAT(layout.buckets[2].parameters, ElementsAre(2, 1, 0));
}

TEST(GradientLayoutTest, ParametersDoNotOverlapAndSlicesBeginOnCacheLines) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const int count = 1 + static_cast<int>(random() % 30);
    const int world_size = 1 + static_cast<int>(random() % 8);
    std::vector<int64_t> elements(count);
    for (int64_t& n : elements) n = 1 + random() % 5000;
    std::vector<int> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const GradientLayout layout =
        LayOutGradients(elements, order, world_size, {.first_bytes = 8192, .bytes = 32768});

    int64_t at = 0;
    std::vector<int> seen;
    for (const GradientBucket& bucket : layout.buckets) {
      EXPECT_EQ(bucket.begin, at);
      EXPECT_EQ((bucket.end - bucket.begin) % (16 * world_size), 0);
      for (const int p : bucket.parameters) {
        EXPECT_GE(layout.offsets[p], at);
        EXPECT_EQ(layout.offsets[p] % 16, 0);
        EXPECT_EQ(layout.bucket_of[p], &bucket - layout.buckets.data());
        at = layout.offsets[p] + elements[p];
        seen.push_back(p);
      }
      EXPECT_LE(at, bucket.end);
      at = bucket.end;
    }
    EXPECT_EQ(layout.elements, at);
    EXPECT_EQ(seen, order);
  }
}

TEST(GradientLayoutTest, AModelWithoutParametersHasNoBucket) {
  const GradientLayout layout = LayOutGradients({}, {}, 2);
  EXPECT_TRUE(layout.buckets.empty());
  EXPECT_EQ(layout.elements, 0);
}

}  // namespace
}  // namespace muster::gradient_layout_test
