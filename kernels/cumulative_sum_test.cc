#include "kernels/cumulative_sum.h"

#include <vector>

#include "kernels/comparison.h"

namespace muster::kernels::cumulative_sum_test {
namespace {

const CumulativeShape kShapes[] = {{1, 1, 1}, {1, 1000, 1}, {3, 7, 1}, {2, 5, 3}, {2, 33, 130}};

template <typename T, typename Total>
std::vector<Total> Expected(const std::vector<T>& x, const CumulativeShape& s) {
  std::vector<Total> y(x.size());
  for (int64_t i = 0; i < std::ssize(x); ++i) {
    const int64_t k = i / s.inner % s.size;
    for (int64_t j = 0; j < s.size; ++j) {
      const bool counts = s.reverse ? j > k : j < k;
      if (counts || (j == k && !s.exclusive)) y[i] += static_cast<Total>(x[i + (j - k) * s.inner]);
    }
  }
  return y;
}

TEST(CumulativeSumTest, EveryElementIsTheSumOfThoseBeforeIt) {
  for (CumulativeShape shape : kShapes) {
    for (int kind = 0; kind < 4; ++kind) {
      shape.exclusive = kind % 2 == 1;
      shape.reverse = kind / 2 == 1;
      const int64_t n = shape.outer * shape.size * shape.inner;
      const Floats x = Normals(n, 1);
      Floats y(n, NAN), in_place = x;

      CumulativeSum(y.data(), x.data(), shape);
      CumulativeSum(in_place.data(), in_place.data(), shape);

      ExpectClose(y, Expected<float, double>(x, shape));
      EXPECT_EQ(in_place, y);

      const std::vector<int32_t> ids = RandomIds(n, INT32_MAX, 2);  // wrap around
      std::vector<int32_t> sums(n);
      CumulativeSum(sums.data(), ids.data(), shape);
      const std::vector<uint32_t> expected = Expected<int32_t, uint32_t>(ids, shape);
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(static_cast<uint32_t>(sums[i]), expected[i]);
    }
  }
}

TEST(CumulativeSumTest, ThreadsDoNotChangeTheResult) {
  const Floats x = Normals(20 * 50 * 130, 1);
  ExpectSameOnAnyThreads([&] {
    Floats y(x.size(), NAN);
    CumulativeSum(y.data(), x.data(), {20, 50, 130});
    return y;
  });
}

}  // namespace
}  // namespace muster::kernels::cumulative_sum_test
