#include "kernels/layer_norm.h"

#include "kernels/comparison.h"
#include "kernels/reference.h"

namespace muster::kernels {
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

  // Two channels nearly cancel in the variance, so the moments weigh what their terms weigh.
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
    // With two channels the three terms cancel almost wholly: the error is that of the terms.
    for (size_t i = 0; i < dx.size(); ++i) EXPECT_NEAR(dx[i], expected_dx[i], 1e-5);
  }
}

}  // namespace
}  // namespace muster::kernels
