#include "kernels/group_norm.h"

#include "kernels/comparison.h"

namespace muster::kernels::group_norm_test {
namespace {

using Doubles = std::vector<double>;

class GroupNormTest : public testing::TestWithParam<GroupNormShape> {
 protected:
  Doubles Reference(const Doubles& x, const Doubles& gain, const Doubles& bias) const {
    Doubles y;
    const auto [batch, channels, positions, groups] = shape_;
    const int64_t n = channels / groups * positions;
    for (int64_t g = 0; g < batch * groups; ++g) {
      double mean = 0, variance = 0;
      for (int64_t i = g * n; i < (g + 1) * n; ++i) mean += x[i] / n;
      for (int64_t i = g * n; i < (g + 1) * n; ++i) variance += (x[i] - mean) * (x[i] - mean) / n;
      for (int64_t i = g * n; i < (g + 1) * n; ++i) {
        const int64_t channel = i / positions % channels;
        y.push_back((x[i] - mean) / std::sqrt(variance + 1e-5) * gain[channel] + bias[channel]);
      }
    }
    return y;
  }

  const GroupNormShape shape_ = GetParam();
  const Floats x_ = Normals(shape_.batch * shape_.channels * shape_.positions, 1);
  const Floats gain_ = Normals(shape_.channels, 2), bias_ = Normals(shape_.channels, 3);
  const Floats dy_ = Normals(x_.size(), 4);
  Floats y_ = Floats(x_.size(), NAN);
  Floats mean_ = Floats(shape_.batch * shape_.groups, NAN), rstd_ = mean_;
};

INSTANTIATE_TEST_SUITE_P(OddSizes, GroupNormTest,
                         testing::Values(GroupNormShape{1, 1, 5, 1}, GroupNormShape{2, 6, 7, 3},
                                         GroupNormShape{3, 4, 1, 2}, GroupNormShape{2, 4, 33, 4},
                                         GroupNormShape{2, 6, 20, 1}));

TEST_P(GroupNormTest, ForwardAndDerivativesMatchTheFormula) {
  GroupNorm(y_.data(), mean_.data(), rstd_.data(), x_.data(), gain_.data(), bias_.data(), 1e-5f,
            shape_);
  ExpectClose(y_, Reference(Wide(x_), Wide(gain_), Wide(bias_)), 64);

  Floats dx(x_.size(), NAN), dgain(gain_.size(), NAN), dbias(gain_.size(), NAN);
  GroupNormGradInput(dx.data(), dy_.data(), x_.data(), gain_.data(), mean_.data(), rstd_.data(),
                     shape_);
  GroupNormGradParameters(dgain.data(), dbias.data(), dy_.data(), x_.data(), mean_.data(),
                          rstd_.data(), shape_);
  const Doubles gain = Wide(gain_), bias = Wide(bias_), x = Wide(x_), dy = Wide(dy_);
  const Doubles expected =
      Gradient([&](const Doubles& v) { return Reference(v, gain, bias); }, x, dy);
  for (size_t i = 0; i < dx.size(); ++i) EXPECT_NEAR(dx[i], expected[i], 3e-5);
  ExpectClose(dgain, Gradient([&](const Doubles& v) { return Reference(x, v, bias); }, gain, dy),
              256);
  ExpectClose(dbias, Gradient([&](const Doubles& v) { return Reference(x, gain, v); }, bias, dy),
              256);

  Floats in_place = dy_;
  GroupNormGradInput(in_place.data(), in_place.data(), x_.data(), gain_.data(), mean_.data(),
                     rstd_.data(), shape_);
  EXPECT_EQ(in_place, dx);
  in_place = x_;
  GroupNormGradInput(in_place.data(), dy_.data(), in_place.data(), gain_.data(), mean_.data(),
                     rstd_.data(), shape_);
  EXPECT_EQ(in_place, dx);
  in_place = x_;
  GroupNorm(in_place.data(), mean_.data(), rstd_.data(), in_place.data(), gain_.data(),
            bias_.data(), 1e-5f, shape_);
  EXPECT_EQ(in_place, y_);
}

}  // namespace
}  // namespace muster::kernels::group_norm_test
