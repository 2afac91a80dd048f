#include "kernels/rms_norm.h"

#include "kernels/comparison.h"

namespace muster::kernels::rms_norm_test {
namespace {

using Doubles = std::vector<double>;

class RmsNormTest : public testing::TestWithParam<RmsNormShape> {
 protected:
  Doubles Reference(const Doubles& x, const Doubles& gain) const {
    Doubles y;
    const int64_t n = shape_.channels;
    for (int64_t r = 0; r < shape_.rows; ++r) {
      double squares = 0;
      for (int64_t c = 0; c < n; ++c) squares += x[r * n + c] * x[r * n + c];
      const double rstd = 1 / std::sqrt(squares / n + 1e-5);
      for (int64_t c = 0; c < n; ++c) y.push_back(x[r * n + c] * rstd * gain[c]);
    }
    return y;
  }

  const RmsNormShape shape_ = GetParam();
  const Floats x_ = Normals(shape_.rows * shape_.channels, 1);
  const Floats gain_ = Normals(shape_.channels, 2);
  const Floats dy_ = Normals(x_.size(), 3);
  Floats y_ = Floats(x_.size(), NAN), rstd_ = Floats(shape_.rows, NAN);
};

INSTANTIATE_TEST_SUITE_P(OddSizes, RmsNormTest,
                         testing::Values(RmsNormShape{1, 1}, RmsNormShape{3, 7},
                                         RmsNormShape{5, 16}, RmsNormShape{70, 33}));

TEST_P(RmsNormTest, ForwardAndDerivativesMatchTheFormula) {
  RmsNorm(y_.data(), rstd_.data(), x_.data(), gain_.data(), 1e-5f, shape_);
  ExpectClose(y_, Reference(Wide(x_), Wide(gain_)));

  Floats dx(x_.size(), NAN), dgain(gain_.size(), NAN);
  RmsNormGradInput(dx.data(), dy_.data(), x_.data(), gain_.data(), rstd_.data(), shape_);
  RmsNormGradGain(dgain.data(), dy_.data(), x_.data(), rstd_.data(), shape_);
  const Doubles expected_dx =
      Gradient([&](const Doubles& x) { return Reference(x, Wide(gain_)); }, Wide(x_), Wide(dy_));
  const Doubles expected_dgain = Gradient(
      [&](const Doubles& gain) { return Reference(Wide(x_), gain); }, Wide(gain_), Wide(dy_));
  // The derivative cancels completely if there is one channel.
  for (size_t i = 0; i < dx.size(); ++i) EXPECT_NEAR(dx[i], expected_dx[i], 1e-5);
  ExpectClose(dgain, expected_dgain, shape_.rows);

  Floats in_place = dy_;
  RmsNormGradInput(in_place.data(), in_place.data(), x_.data(), gain_.data(), rstd_.data(), shape_);
  EXPECT_EQ(in_place, dx);
  in_place = x_;
  RmsNorm(in_place.data(), rstd_.data(), in_place.data(), gain_.data(), 1e-5f, shape_);
  EXPECT_EQ(in_place, y_);
}

}  // namespace
}  // namespace muster::kernels::rms_norm_test
