#include "lib/engine/cuda/row_distance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/conversion.h"

namespace muster::row_distance_test {
namespace {

using kernels::cuda::Type;

std::vector<uint16_t> Narrowed(const std::vector<float>& values, Type type = Type::kBf16) {
  std::vector<uint16_t> narrow(values.size());
  kernels::Convert(narrow.data(),
                   type == Type::kBf16 ? kernels::ElementType::kBf16 : kernels::ElementType::kF16,
                   values.data(), kernels::ElementType::kF32, static_cast<int64_t>(values.size()));
  return narrow;
}

double Distance(const std::vector<float>& own, const std::vector<float>& other, int64_t length,
                Type type = Type::kBf16) {
  return RowDistance(Narrowed(own, type), Narrowed(other, type), length, type);
}

TEST(RowDistanceTest, IsTheDistanceOfTheRowThatDiffersMost) {
  const std::vector<float> own = {3, 4, 3, 4, 0, 5};
  EXPECT_EQ(Distance(own, own, 2), 0);
  EXPECT_EQ(Distance(own, {3, 4, 3, 5, 0, 6}, 2), 0.2);
  EXPECT_EQ(Distance(own, {3, 4, 3, 5, 0, 6}, 2, Type::kF16), 0.2);
  EXPECT_EQ(Distance(own, {0, 0, 3, 4, 0, 5}, 2), 1);
}

TEST(RowDistanceTest, OneWrongRowAmongThousandsCountsAsIfAlone) {
  std::vector<float> own(5000 * 300, 1), other = own;
  for (int i = 0; i < 300; ++i) other[4999 * 300 + i] = -1;
  EXPECT_NEAR(Distance(own, other, 300), 2, 1e-6);
}

TEST(RowDistanceTest, AShortRowIsComparedWithTheUsualNorm) {
  // There are three rows that are not zero, with norms 10, 10 and 0.5. The usual norm is about 10
  // sqrt(2 / 3).
  EXPECT_NEAR(Distance({10, 10, 0.5}, {10, 10, 1.5}, 1), 1 / (10 * std::sqrt(2 / 3.0)), 1e-3);
  // A row of zeros does not count for the usual norm.
  EXPECT_NEAR(Distance({10, 0, 0, 0}, {10, 1, 0, 0}, 1), 0.1, 1e-6);
}

TEST(RowDistanceTest, NonFiniteElementsAreInfinitelyFar) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isinf(Distance({1, 2}, {1, nan}, 1)));
  EXPECT_TRUE(std::isinf(Distance({1, nan}, {1, nan}, 1)));
  EXPECT_TRUE(std::isinf(Distance({0, 0}, {0, 1}, 1)));
  EXPECT_EQ(Distance({0, 0}, {0, 0}, 1), 0);
}

}  // namespace
}  // namespace muster::row_distance_test
