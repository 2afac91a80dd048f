#include "kernels/softmax.h"

#include "kernels/comparison.h"
#include "kernels/reference.h"

namespace muster::kernels::softmax_test {
namespace {

using Doubles = std::vector<double>;

class SoftmaxTest : public testing::TestWithParam<SoftmaxShape> {
 protected:
  Doubles Reference(const Doubles& x) const {
    Doubles y;
    for (int64_t r = 0; r < shape_.rows; ++r) {
      const auto row = x.begin() + r * shape_.classes;
      for (double p : reference::Softmax(Doubles(row, row + shape_.classes))) y.push_back(p);
    }
    return y;
  }
  Doubles LogReference(const Doubles& x) const {
    Doubles y = Reference(x);
    for (double& p : y) p = std::log(p);
    return y;
  }

  const SoftmaxShape shape_ = GetParam();
  const Floats x_ = Normals(shape_.rows * shape_.classes, 1);
  const Floats dy_ = Normals(x_.size(), 2);
  Floats y_ = Floats(x_.size(), NAN), dx_ = y_;
};

INSTANTIATE_TEST_SUITE_P(OddSizes, SoftmaxTest,
                         testing::Values(SoftmaxShape{1, 1}, SoftmaxShape{3, 2},
                                         SoftmaxShape{5, 16}, SoftmaxShape{4, 33},
                                         SoftmaxShape{2, 257}));

TEST_P(SoftmaxTest, ValuesAndDerivativeMatchTheirFormulas) {
  Softmax(y_.data(), x_.data(), shape_);
  SoftmaxGrad(dx_.data(), dy_.data(), y_.data(), shape_);
  ExpectClose(y_, Reference(Wide(x_)));
  const Doubles expected =
      Gradient([&](const Doubles& x) { return Reference(x); }, Wide(x_), Wide(dy_));
  for (size_t i = 0; i < dx_.size(); ++i) EXPECT_NEAR(dx_[i], expected[i], 1e-6);

  Floats in_place = x_;
  Softmax(in_place.data(), in_place.data(), shape_);
  EXPECT_EQ(in_place, y_);
  SoftmaxGrad(in_place.data(), dy_.data(), in_place.data(), shape_);
  EXPECT_EQ(in_place, dx_);
}

TEST_P(SoftmaxTest, LogarithmAndDerivativeMatchTheirFormulas) {
  LogSoftmax(y_.data(), x_.data(), shape_);
  LogSoftmaxGrad(dx_.data(), dy_.data(), y_.data(), shape_);
  const Doubles log_expected = LogReference(Wide(x_));
  for (size_t i = 0; i < y_.size(); ++i) EXPECT_NEAR(y_[i], log_expected[i], 3e-6);
  const Doubles expected =
      Gradient([&](const Doubles& x) { return LogReference(x); }, Wide(x_), Wide(dy_));
  for (size_t i = 0; i < dx_.size(); ++i) EXPECT_NEAR(dx_[i], expected[i], 3e-6);

  Floats in_place = dy_;
  LogSoftmaxGrad(in_place.data(), in_place.data(), y_.data(), shape_);
  EXPECT_EQ(in_place, dx_);
}

TEST(SoftmaxTest, FarAndMaskedLogitsAreHarmless) {
  const Floats x = {1e4f, 1e4f, -INFINITY, -1e4f};
  Floats y(4);
  Softmax(y.data(), x.data(), {1, 4});
  EXPECT_EQ(y, (Floats{0.5f, 0.5f, 0, 0}));
}

}  // namespace
}  // namespace muster::kernels::softmax_test
