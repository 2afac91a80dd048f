#include "kernels/elementwise.h"

#include "kernels/comparison.h"
#include "kernels/reference.h"

namespace muster::kernels {
namespace {

struct Rows {
  int64_t rows, n;
};

class ElementwiseTest : public testing::TestWithParam<Rows> {};

INSTANTIATE_TEST_SUITE_P(OddSizes, ElementwiseTest,
                         testing::Values(Rows{1, 1}, Rows{3, 5}, Rows{4, 16}, Rows{7, 33},
                                         Rows{1001, 3}));

TEST_P(ElementwiseTest, AddRepeatsTheSuffixOverTheRowsAndMayRunInPlace) {
  const auto [rows, n] = GetParam();
  Floats a = Normals(rows * n, 1);
  const Floats b = Normals(n, 2);
  Floats y(a.size(), NAN);

  Add(y.data(), a.data(), b.data(), rows, n);
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], a[i] + b[i % n]);

  Add(a.data(), a.data(), b.data(), rows, n);
  EXPECT_EQ(a, y);
}

TEST_P(ElementwiseTest, SumRowsAddsEveryRow) {
  const auto [rows, n] = GetParam();
  const Floats x = Normals(rows * n, 1);
  Floats sum(n, NAN);
  SumRows(sum.data(), x.data(), rows, n);
  ExpectClose(sum, reference::SumRows(Wide(x), rows, n), rows);
}

}  // namespace
}  // namespace muster::kernels
