#include "kernels/layer_norm.h"

#include "kernels/comparison.h"
#include "kernels/reference.h"

namespace muster::kernels::layer_norm_test {
namespace {

class LayerNormTest : public testing::TestWithParam<LayerNormShape> {
 protected:
  const LayerNormShape shape_ = GetParam();
  const Floats x_ = Normals(shape_.rows * shape_.channels, 1);
  const Floats gain_ = Normals(shape_.channels, 2);
  const Floats bias_ = Normals(shape_.channels, 3);
  const Floats dy_ = Normals(x_.size(), 4);
  const reference::Normalized expected_ =
      reference::LayerNorm(Wide(x_), Wide(gain_), Wide(bias_), 1e-5, shape_.rows, shape_.channels);
  Floats y_ = Floats(x_.size(), NAN);
  Floats mean_ = Floats(shape_.rows, NAN);
  Floats rstd_ = Floats(shape_.rows, NAN);
};

INSTANTIATE_TEST_SUITE_P(OddSizes, LayerNormTest,
                         testing::Values(LayerNormShape{1, 2}, LayerNormShape{3, 7},
                                         LayerNormShape{5, 16}, LayerNormShape{4, 33},
                                         LayerNormShape{70, 129}));

TEST_P(LayerNormTest, ForwardCentersScalesAndKeepsTheMoments) {
  LayerNorm(y_.data(), mean_.data(), rstd_.data(), x_.data(), gain_.data(), bias_.data(), 1e-5f,
            shape_);

  // With two channels the variance nearly cancels, so its error is that of its terms.
  ExpectClose(y_, expected_.y, 64);
  ExpectClose(rstd_, expected_.rstd, 64);
  for (int64_t r = 0; r < shape_.rows; ++r) EXPECT_NEAR(mean_[r], expected_.mean[r], 1e-6);
}

TEST_P(LayerNormTest, TheInputMayBeOverwritten) {
  LayerNorm(y_.data(), mean_.data(), rstd_.data(), x_.data(), gain_.data(), bias_.data(), 1e-5f,
            shape_);
  Floats in_place = x_;
  LayerNorm(in_place.data(), mean_.data(), rstd_.data(), in_place.data(), gain_.data(),
            bias_.data(), 1e-5f, shape_);
  EXPECT_EQ(in_place, y_);
}

TEST_P(LayerNormTest, DerivativesFollowFromTheMoments) {
  LayerNorm(y_.data(), mean_.data(), rstd_.data(), x_.data(), gain_.data(), bias_.data(), 1e-5f,
            shape_);
  Floats dx(x_.size(), NAN), dgain(shape_.channels, NAN), dbias(shape_.channels, NAN);

  LayerNormGradInput(dx.data(), dy_.data(), x_.data(), gain_.data(), mean_.data(), rstd_.data(),
                     shape_);
  LayerNormGradParameters(dgain.data(), dbias.data(), dy_.data(), x_.data(), mean_.data(),
                          rstd_.data(), shape_);

  std::vector<double> weighted = Wide(dy_);
  for (size_t i = 0; i < weighted.size(); ++i) weighted[i] *= expected_.normal[i];
  ExpectClose(dgain, reference::SumRows(weighted, shape_.rows, shape_.channels), shape_.rows);
  ExpectClose(dbias, reference::SumRows(Wide(dy_), shape_.rows, shape_.channels), shape_.rows);
  const std::vector<double> expected_dx = reference::LayerNormGradInput(
      Wide(dy_), Wide(gain_), expected_, shape_.rows, shape_.channels);
  if (shape_.channels > 2) {
    ExpectClose(dx, expected_dx, 256);
  } else {
    // With two channels the three terms cancel almost completely: the error is that of the terms.
    for (size_t i = 0; i < dx.size(); ++i) EXPECT_NEAR(dx[i], expected_dx[i], 1e-5);
  }

  const Floats with_bias = dgain;
  LayerNormGradParameters(dgain.data(), /*dbias=*/nullptr, dy_.data(), x_.data(), mean_.data(),
                          rstd_.data(), shape_);
  EXPECT_EQ(dgain, with_bias);
  Floats in_place = dy_;
  LayerNormGradInput(in_place.data(), in_place.data(), x_.data(), gain_.data(), mean_.data(),
                     rstd_.data(), shape_);
  EXPECT_EQ(in_place, dx);
  in_place = x_;
  LayerNormGradInput(in_place.data(), dy_.data(), in_place.data(), gain_.data(), mean_.data(),
                     rstd_.data(), shape_);
  EXPECT_EQ(in_place, dx);
}

TEST_P(LayerNormTest, AMissingBiasIsZero) {
  const Floats zeros(shape_.channels, 0.0f);
  Floats without(x_.size(), NAN);
  LayerNorm(y_.data(), mean_.data(), rstd_.data(), x_.data(), gain_.data(), zeros.data(), 1e-5f,
            shape_);
  LayerNorm(without.data(), mean_.data(), rstd_.data(), x_.data(), gain_.data(), nullptr, 1e-5f,
            shape_);
  EXPECT_EQ(without, y_);
}

TEST_P(LayerNormTest, AddLayerNormNormalisesTheSum) {
  Floats sum(x_.size()), expected(x_.size()), a = x_;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = x_[i] + dy_[i];
  LayerNorm(expected.data(), mean_.data(), rstd_.data(), sum.data(), gain_.data(), bias_.data(),
            1e-5f, shape_);
  Floats mean(mean_.size(), NAN), rstd(rstd_.size(), NAN);
  AddLayerNorm(y_.data(), mean.data(), rstd.data(), a.data(), a.data(), dy_.data(), gain_.data(),
               bias_.data(), 1e-5f, shape_);
  EXPECT_EQ(a, sum);
  EXPECT_EQ(y_, expected);
  EXPECT_EQ(mean, mean_);
  EXPECT_EQ(rstd, rstd_);
}

TEST(LayerNormTest, ThreadsDoNotChangeTheResult) {
  const LayerNormShape shape{300, 200};
  const Floats x = Normals(shape.rows * shape.channels, 1), dy = Normals(x.size(), 2);
  const Floats gain = Normals(shape.channels, 3);
  ExpectSameOnAnyThreads([&] {
    Floats y(x.size()), mean(shape.rows), rstd(shape.rows), dgain(shape.channels),
        dbias(shape.channels);
    LayerNorm(y.data(), mean.data(), rstd.data(), x.data(), gain.data(), gain.data(), 1e-5f, shape);
    LayerNormGradParameters(dgain.data(), dbias.data(), dy.data(), x.data(), mean.data(),
                            rstd.data(), shape);
    y.insert(y.end(), dgain.begin(), dgain.end());
    y.insert(y.end(), dbias.begin(), dbias.end());
    return y;
  });
}

TEST(LayerNormTest, ALargeMeanDoesNotHideTheVariance) {
  const Floats x = {10000, 10001, 10002, 10003}, ones(4, 1.0f);
  Floats y(4), mean(1), rstd(1);
  LayerNorm(y.data(), mean.data(), rstd.data(), x.data(), ones.data(), nullptr, 0.0f, {1, 4});
  ExpectClose(y, {-1.5 / std::sqrt(1.25), -0.5 / std::sqrt(1.25), 0.5 / std::sqrt(1.25),
                  1.5 / std::sqrt(1.25)});
}

}  // namespace
}  // namespace muster::kernels::layer_norm_test
