#include "kernels/batch_norm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

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
    BatchNormMoments(x.data(), shape, workspace.data());
    BatchNormApply({y.data(), r.mean.data(), r.rstd.data(), r.variance.data(), state.data()},
                   x.data(), bias_.data(), gain_.data(), kEpsilon, shape, activation,
                   workspace.data());
    BatchNormGradSums(dy.data(), x.data(), r.mean.data(), r.rstd.data(), state.data(), gain_.data(),
                      shape, activation, workspace.data());
    BatchNormGradApply({dx.data(), r.dbias.data(), r.dgain.data()}, dy.data(), x.data(),
                       r.rstd.data(), shape, activation, workspace.data());
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

// Normalises x[B, C] in parts of one device each, which exchange their sums. Returns the results of
// all parts in the order of the samples; dbias and dgain are the sums over the parts.
Results RunInParts(const std::vector<int64_t>& parts, const Floats& x, const Floats& dy,
                   const Floats& bias, const Floats& gain) {
  struct Device {
    BatchNormShape shape;
    std::unique_ptr<Scratch> workspace;
    int64_t first;
    Floats state;
  };
  const auto channels = static_cast<int64_t>(bias.size());
  std::vector<Device> devices;
  int64_t first = 0;
  for (const int64_t samples : parts) {
    const BatchNormShape shape{.batch = samples,
                               .channels = channels,
                               .pixels = 1,
                               .devices = static_cast<int>(parts.size())};
    devices.push_back({.shape = shape,
                       .workspace = std::make_unique<Scratch>(BatchNormWorkspaceBytes(shape)),
                       .first = first * channels,
                       .state = Floats(shape.state_floats(), NAN)});
    first += samples;
  }
  const auto gather = [&] {
    for (const Device& from : devices) {
      const BatchNormSums sums = BatchNormSumsIn(from.shape, from.workspace->data());
      for (const Device& to : devices) {
        std::copy_n(sums.own, sums.size,
                    BatchNormSumsIn(to.shape, to.workspace->data()).all +
                        (&from - devices.data()) * sums.size);
      }
    }
  };
  const Floats each(channels, NAN);
  Results r{.y = Floats(x.size(), NAN), .mean = each, .rstd = each, .variance = each};
  r.dx = Floats(x.size(), NAN);
  r.dbias = r.dgain = Floats(channels, 0);
  for (const Device& d : devices) {
    BatchNormMoments(x.data() + d.first, d.shape, d.workspace->data());
  }
  gather();
  for (Device& d : devices) {
    BatchNormApply(
        {r.y.data() + d.first, r.mean.data(), r.rstd.data(), r.variance.data(), d.state.data()},
        x.data() + d.first, bias.data(), gain.data(), kEpsilon, d.shape, BatchNormActivation::kRelu,
        d.workspace->data());
  }
  for (Device& d : devices) {
    BatchNormGradSums(dy.data() + d.first, x.data() + d.first, r.mean.data(), r.rstd.data(),
                      d.state.data(), gain.data(), d.shape, BatchNormActivation::kRelu,
                      d.workspace->data());
  }
  gather();
  for (Device& d : devices) {
    Floats dbias(channels), dgain(channels);
    BatchNormGradApply({r.dx.data() + d.first, dbias.data(), dgain.data()}, dy.data() + d.first,
                       x.data() + d.first, r.rstd.data(), d.shape, BatchNormActivation::kRelu,
                       d.workspace->data());
    for (int64_t c = 0; c < channels; ++c) {
      r.dbias[c] += dbias[c];
      r.dgain[c] += dgain[c];
    }
  }
  return r;
}

TEST(SynchronisedBatchNormTest, PartsOfABatchGiveWhatTheBatchGives) {
  constexpr int64_t kBatch = 11, kChannels = 5;
  const Floats x = Normals(kBatch * kChannels, 1), dy = Normals(kBatch * kChannels, 2);
  const Floats gain = Normals(kChannels, 3), bias = Normals(kChannels, 4);
  const Results whole = RunInParts({kBatch}, x, dy, bias, gain);
  for (const std::vector<int64_t>& parts :
       std::vector<std::vector<int64_t>>{{6, 5}, {1, 10}, {3, 3, 3, 2}, {1, 1, 8, 1}}) {
    const Results r = RunInParts(parts, x, dy, bias, gain);
    const auto expect_close = [](const Floats& values, const Floats& wanted) {
      for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(values[i], wanted[i], 1e-6) << i;
    };
    expect_close(r.y, whole.y);
    expect_close(r.mean, whole.mean);
    expect_close(r.rstd, whole.rstd);
    expect_close(r.variance, whole.variance);
    expect_close(r.dx, whole.dx);
    expect_close(r.dbias, whole.dbias);
    expect_close(r.dgain, whole.dgain);
  }
}

// Sums of squares that are not centred would lose more digits than a float has.
TEST(SynchronisedBatchNormTest, PartsFarFromZeroKeepTheirVariance) {
  constexpr int64_t kBatch = 400;
  Floats x = Normals(kBatch, 1);
  for (float& v : x) v += 10000;
  const reference::BatchNorm expected(Wide(x), 0, kBatch, 1, 1);
  const Results r = RunInParts({101, 100, 100, 99}, x, Normals(kBatch, 2), {0}, {1});
  EXPECT_NEAR(r.variance[0], expected.variance[0], 1e-5);
  EXPECT_NEAR(r.mean[0], expected.mean[0], 1e-3) << "the distance between floats";
}

TEST(BatchNormTest, AChannelFarFromZeroKeepsItsVariance) {
  for (const float mean : {1000.0f, 10000.0f}) {
    Floats x = Normals(4 * 1000, 1);
    for (float& v : x) v += mean;
    const reference::BatchNorm expected(Wide(x), 0, 4, 1, 1000);
    const BatchNormShape shape{.batch = 4, .channels = 1, .pixels = 1000};
    Scratch workspace(BatchNormWorkspaceBytes(shape));
    Floats y(x.size(), NAN), state(shape.state_floats());
    float of_batch = 0, rstd = 0, variance = 0;
    const float bias = 0;

    BatchNormMoments(x.data(), shape, workspace.data());
    BatchNormApply({y.data(), &of_batch, &rstd, &variance, state.data()}, x.data(), &bias, nullptr,
                   0, shape, BatchNormActivation::kNone, workspace.data());

    EXPECT_NEAR(variance, expected.variance[0], mean == 1000 ? 1e-6 : 1e-5);
  }
}

}  // namespace
}  // namespace muster::kernels::batch_norm_test
