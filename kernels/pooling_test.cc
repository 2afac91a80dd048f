#include "kernels/pooling.h"

#include "kernels/comparison.h"
#include "kernels/images.h"
#include "kernels/reference.h"

namespace muster::kernels::pooling_test {
namespace {

class PoolingTest : public testing::TestWithParam<PoolShape> {
 protected:
  // Returns the shape with x in each layout.
  std::vector<PoolShape> Shapes() const {
    std::vector<PoolShape> shapes;
    for (const Layout& layout :
         ImageLayouts({shape_.batch, shape_.channels, shape_.height, shape_.width})) {
      shapes.push_back(shape_);
      shapes.back().layout = layout;
    }
    return shapes;
  }

  int64_t Inputs() const { return shape_.batch * shape_.channels * shape_.height * shape_.width; }
  int64_t Outputs() const {
    return shape_.batch * shape_.channels * shape_.output_height() * shape_.output_width();
  }

  const PoolShape shape_ = GetParam();
  const reference::Pooling<PoolShape> reference_{shape_};
  const Floats x_ = Normals(Inputs(), 1);
  const Floats dy_ = Normals(Outputs(), 2);
};

INSTANTIATE_TEST_SUITE_P(
    Shapes, PoolingTest,
    testing::Values(PoolShape{1, 1, 1, 1, {1, 1}, {1, 1}}, PoolShape{2, 3, 5, 7, {2, 2}, {2, 2}},
                    PoolShape{2, 5, 9, 9, {3, 3}, {2, 2}, {1, 1, 1, 1}},
                    PoolShape{1, 17, 6, 8, {3, 2}, {1, 2}, {1, 0, 2, 1}},
                    PoolShape{1, 32, 7, 6, {3, 3}, {2, 2}, {}, true},
                    PoolShape{2, 16, 6, 5, {3, 3}, {2, 2}, {1, 1, 1, 1}, true},
                    // The last window would start in the padding after the image.
                    PoolShape{1, 2, 4, 4, {2, 2}, {3, 3}, {0, 0, 1, 1}, true}));

// Has cases with dilations, which averages do not support.
class MaxPoolingTest : public PoolingTest {};

INSTANTIATE_TEST_SUITE_P(
    Shapes, MaxPoolingTest,
    testing::Values(PoolShape{1, 1, 1, 1, {1, 1}, {1, 1}}, PoolShape{2, 3, 5, 7, {2, 2}, {2, 2}},
                    PoolShape{1, 17, 6, 8, {3, 2}, {1, 2}, {1, 0, 2, 1}},
                    PoolShape{2, 16, 6, 5, {3, 3}, {2, 2}, {1, 1, 1, 1}, true},
                    PoolShape{1, 2, 4, 4, {2, 2}, {3, 3}, {0, 0, 1, 1}, true},
                    PoolShape{2, 17, 9, 8, {3, 2}, {1, 2}, {2, 1, 1, 2}, false, {}, {2, 3}},
                    PoolShape{1, 16, 7, 7, {2, 2}, {2, 2}, {1, 1, 1, 1}, true, {}, {3, 2}}));

TEST_P(MaxPoolingTest, TheFirstMaximumOfAWindowTakesItsGradient) {
  Floats x = x_;
  for (float& v : x) v = std::round(2 * v);  // so that some are equal
  Floats y(Outputs(), -INFINITY), dx(Inputs(), 0.0f);
  std::vector<int64_t> where(Outputs(), -1);
  reference_.ForEachPair([&](int64_t out, int64_t in) {
    if (x[in] > y[out]) {
      y[out] = x[in];
      where[out] = in;
    }
  });
  std::vector<double> expected_dx(Inputs(), 0.0);
  for (int64_t out = 0; out < Outputs(); ++out) expected_dx[where[out]] += dy_[out];

  for (const PoolShape& shape : Shapes()) {
    const Layout y_layout = PoolOutputLayout(shape);
    Floats actual(FloatsIn(y_layout, Outputs()), NAN),
        actual_dx(FloatsIn(shape.layout, Inputs()), NAN);
    std::vector<std::byte> state(MaxPoolStateBytes(shape));

    MaxPool2d(actual.data(), state.data(), ToLayout(x, shape.layout).data(), shape);
    MaxPool2dGrad(actual_dx.data(), ToLayout(dy_, y_layout).data(), state.data(), shape);

    EXPECT_EQ(FromLayout(actual, y_layout, Outputs()), y);
    ExpectClose(FromLayout(actual_dx, shape.layout, Inputs()), expected_dx);
  }
}

TEST_P(PoolingTest, AverageDividesByImageOrPaddedWindow) {
  for (PoolDivisor divisor : {PoolDivisor::kImage, PoolDivisor::kPadded}) {
    std::vector<double> y(Outputs(), 0.0), count(Outputs(), 0.0), dx(Inputs(), 0.0);
    reference_.ForEachPair([&](int64_t out, int64_t in) {
      y[out] += x_[in];
      count[out] += 1;
    });
    if (divisor == PoolDivisor::kPadded) {
      auto size = [&](int d, int64_t at, int64_t image) {
        const int64_t begin = at * shape_.strides[d] - shape_.padding[d];
        return std::min(begin + shape_.kernel[d], image + shape_.padding[d + 2]) - begin;
      };
      for (int64_t out = 0; out < Outputs(); ++out) {
        count[out] = size(1, out % shape_.output_width(), shape_.width) *
                     size(0, out / shape_.output_width() % shape_.output_height(), shape_.height);
      }
    }
    for (int64_t out = 0; out < Outputs(); ++out) y[out] /= count[out];
    reference_.ForEachPair([&](int64_t out, int64_t in) { dx[in] += dy_[out] / count[out]; });

    for (const PoolShape& shape : Shapes()) {
      const Layout y_layout = PoolOutputLayout(shape);
      Floats actual(FloatsIn(y_layout, Outputs()), NAN),
          actual_dx(FloatsIn(shape.layout, Inputs()), NAN);

      AveragePool2d(actual.data(), ToLayout(x_, shape.layout).data(), shape, divisor);
      AveragePool2dGrad(actual_dx.data(), ToLayout(dy_, y_layout).data(), shape, divisor);

      ExpectClose(FromLayout(actual, y_layout, Outputs()), y);
      ExpectClose(FromLayout(actual_dx, shape.layout, Inputs()), dx);
    }
  }
}

TEST_P(PoolingTest, TheGlobalAverageIsOverAllPixels) {
  const int64_t planes = shape_.batch * shape_.channels, pixels = shape_.height * shape_.width;
  const Floats dy = Normals(planes, 3);
  std::vector<double> expected(planes, 0.0), expected_dx(Inputs());
  for (int64_t i = 0; i < Inputs(); ++i) {
    expected[i / pixels] += x_[i] / double(pixels);
    expected_dx[i] = dy[i / pixels] / double(pixels);
  }
  for (const PoolShape& shape : Shapes()) {
    Floats y(planes, NAN), dx(FloatsIn(shape.layout, Inputs()), NAN);

    GlobalAveragePool2d(y.data(), ToLayout(x_, shape.layout).data(), shape.batch, shape.channels,
                        pixels, shape.layout);
    GlobalAveragePool2dGrad(dx.data(), dy.data(), shape.batch, shape.channels, pixels,
                            shape.layout);

    ExpectClose(y, expected, pixels);
    ExpectClose(FromLayout(dx, shape.layout, Inputs()), expected_dx);
  }
}

TEST(PoolingTest, ALastWindowThatStartsInThePaddingIsLeftOut) {
  const PoolShape shape{1, 1, 4, 4, {2, 2}, {3, 3}, {0, 0, 1, 1}, true};
  EXPECT_EQ(shape.output_height(), 2);
  const PoolShape wider{1, 1, 3, 3, {2, 2}, {3, 3}, {0, 0, 1, 1}, true};
  EXPECT_EQ(wider.output_height(), 1);
}

TEST(PoolingTest, NanIsSeen) {
  const PoolShape shape{
      .batch = 1, .channels = 1, .height = 2, .width = 2, .kernel = {2, 2}, .strides = {2, 2}};
  for (int at = 0; at < 4; ++at) {
    Floats x = {1, 2, 3, 4};
    x[at] = NAN;
    float y = 0;
    std::byte state[2];
    MaxPool2d(&y, state, x.data(), shape);
    EXPECT_TRUE(std::isnan(y));
  }
}

}  // namespace
}  // namespace muster::kernels::pooling_test
