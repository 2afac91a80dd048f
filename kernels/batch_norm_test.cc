#include "kernels/batch_norm.h"

#include "kernels/comparison.h"
#include "kernels/images.h"
#include "kernels/reference.h"
#include "kernels/threads.h"

namespace muster::kernels::batch_norm_test {
namespace {

constexpr float kEpsilon = 1e-3f;

struct Results {
  Floats y, mean, rstd, variance, dx, dbias, dgain;

  bool operator==(const Results&) const = default;
};

class BatchNormTest : public testing::TestWithParam<ImageSize> {
 protected:
  Results Run(const Layout& layout, BatchNormActivation activation) const {
    const BatchNormShape shape{size_.batch, size_.channels, pixels_, layout};
    Scratch workspace(BatchNormWorkspaceBytes(shape));
    const Floats x = ToLayout(x_, layout), dy = ToLayout(dy_, layout);
    const Floats each(size_.channels, NAN);
    Floats state(shape.state_floats(), NAN), y(x.size(), NAN), dx(x.size(), NAN);
    Results r{.mean = each, .rstd = each, .variance = each, .dbias = each, .dgain = each};
    BatchNorm({y.data(), r.mean.data(), r.rstd.data(), r.variance.data(), state.data()}, x.data(),
              bias_.data(), gain_.data(), kEpsilon, shape, activation, workspace.data());
    BatchNormGrad({dx.data(), r.dbias.data(), r.dgain.data()}, dy.data(), x.data(), r.mean.data(),
                  r.rstd.data(), state.data(), gain_.data(), shape, activation, workspace.data());
    for (size_t i = 0; i < y.size(); ++i) EXPECT_FALSE(std::isnan(y[i]) || std::isnan(dx[i]));
    r.y = FromLayout(y, layout, x_.size());
    r.dx = FromLayout(dx, layout, x_.size());
    return r;
  }

  std::vector<Layout> Layouts() const { return ImageLayouts(size_); }

  const ImageSize size_ = GetParam();
  const int64_t pixels_ = size_.height * size_.width;
  const int64_t values_ = size_.batch * pixels_;  // of a channel
  const Floats x_ = Normals(values_ * size_.channels, 1);
  const Floats dy_ = Normals(values_ * size_.channels, 2);
  const Floats gain_ = Normals(size_.channels, 3);
  const Floats bias_ = Normals(size_.channels, 4);
  const reference::BatchNorm reference_{Wide(x_), kEpsilon, size_.batch, size_.channels, pixels_};
};

INSTANTIATE_TEST_SUITE_P(Sizes, BatchNormTest,
                         testing::Values(ImageSize{1, 1, 1, 1}, ImageSize{2, 1, 1, 1},
                                         ImageSize{3, 5, 1, 1}, ImageSize{2, 3, 7, 5},
                                         ImageSize{3, 16, 4, 4}, ImageSize{2, 33, 9, 3},
                                         ImageSize{64, 100, 1, 1}, ImageSize{2, 32, 40, 41}));

TEST_P(BatchNormTest, EveryLayoutGivesWhatTheFormulaGives) {
  std::vector<double> y(x_.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const int64_t c = reference_.ChannelOf(i);
    y[i] = reference_.normal[i] * gain_[c] + bias_[c];
  }
  std::vector<double> dbias(size_.channels, 0.0), dgain(size_.channels, 0.0);
  for (size_t i = 0; i < y.size(); ++i) {
    dbias[reference_.ChannelOf(i)] += dy_[i];
    dgain[reference_.ChannelOf(i)] += dy_[i] * reference_.normal[i];
  }
  for (const Layout& layout : Layouts()) {
    const Results r = Run(layout, BatchNormActivation::kNone);
    ExpectClose(r.mean, reference_.mean, values_);
    ExpectClose(r.rstd, reference_.rstd, values_);
    ExpectClose(r.variance, reference_.variance, values_);
    ExpectClose(r.y, y, values_);
    ExpectClose(r.dbias, dbias, values_);
    ExpectClose(r.dgain, dgain, values_);
    if (values_ > 2) {
      ExpectClose(r.dx, reference_.GradInput(Wide(dy_), Wide(gain_)), 64 * values_);
    }
  }
}

TEST_P(BatchNormTest, TheRectifierPassesGradientsWhereItsOutputIsAboveZero) {
  for (const Layout& layout : Layouts()) {
    const Results plain = Run(layout, BatchNormActivation::kNone);
    const Results r = Run(layout, BatchNormActivation::kRelu);
    std::vector<double> through(dy_.begin(), dy_.end()), dbias(size_.channels, 0.0);
    for (size_t i = 0; i < r.y.size(); ++i) {
      EXPECT_EQ(r.y[i], std::max(plain.y[i], 0.0f));
      if (plain.y[i] <= 0) through[i] = 0;
      dbias[reference_.ChannelOf(i)] += through[i];
    }
    ExpectClose(r.dbias, dbias, values_);
    if (values_ > 2) ExpectClose(r.dx, reference_.GradInput(through, Wide(gain_)), 64 * values_);
  }
}

TEST_P(BatchNormTest, TheNumberOfThreadsDoesNotChangeABit) {
  for (const Layout& layout : Layouts()) {
    SetThreads(1);
    const Results alone = Run(layout, BatchNormActivation::kRelu);
    SetThreads(3);
    EXPECT_EQ(Run(layout, BatchNormActivation::kRelu), alone);
    SetThreads(1);
  }
}

TEST_P(BatchNormTest, InferenceTakesTheRunningValues) {
  const Floats mean = Normals(size_.channels, 5);
  Floats variance = Normals(size_.channels, 6);
  for (float& v : variance) v *= v;
  std::vector<double> expected(x_.size());
  for (size_t i = 0; i < x_.size(); ++i) {
    const int64_t c = reference_.ChannelOf(i);
    expected[i] = (double{x_[i]} - mean[c]) / std::sqrt(variance[c] + kEpsilon) + bias_[c];
  }
  for (const Layout& layout : Layouts()) {
    const BatchNormShape shape{size_.batch, size_.channels, pixels_, layout};
    Scratch workspace(BatchNormWorkspaceBytes(shape));
    Floats y = ToLayout(x_, layout);
    BatchNormInference(y.data(), y.data(), mean.data(), variance.data(), bias_.data(),
                       /*gain=*/nullptr, kEpsilon, shape, workspace.data());
    ExpectClose(FromLayout(y, layout, x_.size()), expected);
  }
}

TEST(BatchNormTest, AChannelFarFromZeroKeepsItsVariance) {
  Floats x = Normals(4 * 1000, 1);
  for (float& v : x) v += 1000;
  const reference::BatchNorm expected(Wide(x), 0, 4, 1, 1000);
  const BatchNormShape shape{.batch = 4, .channels = 1, .pixels = 1000};
  Scratch workspace(BatchNormWorkspaceBytes(shape));
  Floats y(x.size(), NAN), state(shape.state_floats());
  float mean = 0, rstd = 0, variance = 0;
  const float bias = 0;

  BatchNorm({y.data(), &mean, &rstd, &variance, state.data()}, x.data(), &bias, nullptr, 0, shape,
            BatchNormActivation::kNone, workspace.data());

  EXPECT_NEAR(variance, expected.variance[0], 1e-6);
}

}  // namespace
}  // namespace muster::kernels::batch_norm_test
