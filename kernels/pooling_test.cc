#include "kernels/pooling.h"

#include "kernels/comparison.h"

namespace muster::kernels {
namespace {

TEST(PoolingTest, EachWindowGivesItsMaximumAndItsGradientGoesBackThere) {
  // The last row and column do not fill a window.
  const PoolShape shape{.planes = 2, .height = 5, .width = 7, .kernel = 2, .stride = 2};
  const Floats x = Normals(2 * 5 * 7, 1), dy = Normals(2 * 2 * 3, 2);
  Floats y(dy.size(), NAN), dx(x.size(), NAN), expected_dx(x.size(), 0.0f);

  MaxPool2d(y.data(), x.data(), shape);
  MaxPool2dGrad(dx.data(), dy.data(), x.data(), shape);

  for (int64_t out = 0; out < static_cast<int64_t>(y.size()); ++out) {
    const int64_t corner = out / 6 * 35 + out / 3 % 2 * 14 + out % 3 * 2;
    int64_t best = corner;
    for (int64_t at : {corner + 1, corner + 7, corner + 8}) best = x[at] > x[best] ? at : best;
    EXPECT_EQ(y[out], x[best]);
    expected_dx[best] += dy[out];
  }
  EXPECT_EQ(dx, expected_dx);
}

TEST(PoolingTest, OverlappingWindowsAddAndTheFirstOfEqualMaximaTakesAll) {
  const PoolShape shape{.planes = 1, .height = 1, .width = 5, .kernel = 1, .stride = 1};
  const PoolShape overlapping{.planes = 1, .height = 3, .width = 3, .kernel = 2, .stride = 1};
  const Floats row = {1, 2, 3, 4, 5}, peak = {0, 0, 0, 0, 9, 0, 0, 0, 0}, flat(9, 1.0f);
  Floats y(5), dx(9);

  MaxPool2d(y.data(), row.data(), shape);
  EXPECT_EQ(y, row);

  const Floats dy = {1, 2, 3, 4};
  MaxPool2dGrad(dx.data(), dy.data(), peak.data(), overlapping);
  EXPECT_EQ(dx, (Floats{0, 0, 0, 0, 10, 0, 0, 0, 0}));
  MaxPool2dGrad(dx.data(), dy.data(), flat.data(), overlapping);
  EXPECT_EQ(dx, (Floats{1, 2, 0, 3, 4, 0, 0, 0, 0}));
}

TEST(PoolingTest, NanIsSeen) {
  const Floats x = {1, NAN, 3, 4};
  float y = 0;
  MaxPool2d(&y, x.data(), {.planes = 1, .height = 2, .width = 2, .kernel = 2, .stride = 2});
  EXPECT_TRUE(std::isnan(y));
}

}  // namespace
}  // namespace muster::kernels
