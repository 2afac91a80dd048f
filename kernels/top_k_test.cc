#include "kernels/top_k.h"

#include <numeric>

#include "kernels/comparison.h"

namespace muster::kernels::top_k_test {
namespace {

class TopKTest : public testing::TestWithParam<TopKShape> {
 protected:
  // Returns rows of rounded numbers, so that many are equal.
  Floats Row() const {
    Floats x = Normals(shape_.rows * shape_.columns, 1);
    for (float& v : x) v = std::round(4 * v) / 4;
    return x;
  }

  // Returns all columns of a row, best first.
  std::vector<int32_t> Sorted(int64_t row) const {
    std::vector<int32_t> columns(shape_.columns);
    std::iota(columns.begin(), columns.end(), 0);
    const float* x = x_.data() + row * shape_.columns;
    std::ranges::stable_sort(
        columns, [&](int32_t a, int32_t b) { return shape_.largest ? x[a] > x[b] : x[a] < x[b]; });
    return columns;
  }

  const TopKShape shape_ = GetParam();
  const Floats x_ = Row();
  const int64_t chosen_ = shape_.rows * shape_.chosen;
};

INSTANTIATE_TEST_SUITE_P(OddSizes, TopKTest,
                         testing::Values(TopKShape{1, 1, 1, true}, TopKShape{3, 7, 1, true},
                                         TopKShape{5, 9, 9, true}, TopKShape{5, 9, 9, false},
                                         TopKShape{40, 1001, 5, true},
                                         TopKShape{40, 1001, 5, false},
                                         TopKShape{2, 50000, 700, true}));

TEST_P(TopKTest, TheBestComeFirstAndOfEqualsTheFirst) {
  Floats values(chosen_, NAN);
  std::vector<int32_t> index(chosen_, -1);
  TopK(values.data(), index.data(), x_.data(), shape_);
  for (int64_t row = 0; row < shape_.rows; ++row) {
    const std::vector<int32_t> sorted = Sorted(row);
    for (int64_t i = 0; i < shape_.chosen; ++i) {
      ASSERT_EQ(index[row * shape_.chosen + i], sorted[i]) << row << ", " << i;
      ASSERT_EQ(values[row * shape_.chosen + i], x_[row * shape_.columns + sorted[i]]);
    }
  }
}

TEST_P(TopKTest, GradientsGoBackToWhereTheValuesCameFrom) {
  const Floats dy = Normals(chosen_, 2);
  Floats values(chosen_), dx(x_.size(), NAN), expected(x_.size(), 0);
  std::vector<int32_t> index(chosen_);
  TopK(values.data(), index.data(), x_.data(), shape_);
  for (int64_t i = 0; i < chosen_; ++i) {
    expected[i / shape_.chosen * shape_.columns + index[i]] = dy[i];
  }
  TopKGrad(dx.data(), dy.data(), index.data(), shape_);
  EXPECT_EQ(dx, expected);
}

TEST(TopKTest, NanIsLargerThanAnyNumber) {
  const Floats x = {1, NAN, INFINITY, -INFINITY, NAN, 2};
  Floats values(6);
  std::vector<int32_t> index(6);
  TopK(values.data(), index.data(), x.data(), {1, 6, 6, true});
  EXPECT_EQ(index, (std::vector<int32_t>{1, 4, 2, 5, 0, 3}));
  TopK(values.data(), index.data(), x.data(), {1, 6, 6, false});
  EXPECT_EQ(index, (std::vector<int32_t>{3, 0, 5, 2, 1, 4}));
}

}  // namespace
}  // namespace muster::kernels::top_k_test
