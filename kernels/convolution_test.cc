#include "kernels/convolution.h"

#include "kernels/comparison.h"
#include "kernels/images.h"
#include "kernels/reference.h"

namespace muster::kernels::convolution_test {
namespace {

class ConvolutionTest : public testing::TestWithParam<Conv2dShape> {
 protected:
  Floats Forward(const Conv2d::Options& options) const {
    Conv2d conv(shape_, options);
    Scratch workspace(conv.workspace_bytes());
    const Floats x = ToLayout(x_, conv.x_layout());
    Floats y(FloatsIn(conv.y_layout(), dy_.size()), NAN);
    conv.Run(y.data(), x.data(), w_.data(), options.bias ? bias_.data() : nullptr,
             workspace.data());
    return FromLayout(y, conv.y_layout(), dy_.size());
  }

  const Conv2dShape shape_ = GetParam();
  const reference::Convolution<Conv2dShape> reference_{shape_};
  const Floats x_ = Normals(shape_.batch * shape_.channels * shape_.height * shape_.width, 1);
  const Floats w_ = Normals(shape_.outputs * shape_.patch(), 2);
  const Floats bias_ = Normals(shape_.outputs, 3);
  const Floats dy_ = Normals(shape_.batch * shape_.outputs * shape_.pixels(), 4);
};

INSTANTIATE_TEST_SUITE_P(
    Shapes, ConvolutionTest,
    testing::Values(Conv2dShape{1, 1, 1, 1, 1, {1, 1}}, Conv2dShape{2, 3, 7, 5, 4, {3, 3}},
                    Conv2dShape{3, 2, 9, 11, 5, {5, 5}, {1, 1}, {2, 2, 2, 2}},
                    Conv2dShape{2, 3, 8, 7, 3, {3, 3}, {2, 2}, {1, 1, 1, 1}},
                    Conv2dShape{1, 2, 2, 3, 2, {3, 3}, {3, 3}, {2, 2, 2, 2}},
                    Conv2dShape{2, 1, 28, 28, 6, {5, 5}, {1, 1}, {2, 2, 2, 2}},
                    // Whole blocks of channels, with one tap and with several.
                    Conv2dShape{2, 32, 7, 7, 64, {1, 1}},
                    Conv2dShape{2, 32, 7, 7, 48, {3, 3}, {1, 1}, {1, 1, 1, 1}},
                    Conv2dShape{2, 64, 8, 8, 32, {1, 1}, {2, 2}},
                    Conv2dShape{1, 17, 9, 9, 33, {3, 3}},
                    // Kernels, strides, padding and dilations that differ between height and width.
                    // The last of these shapes has equal dilations.
                    Conv2dShape{2, 16, 9, 13, 16, {1, 7}, {1, 1}, {0, 3, 0, 3}},
                    Conv2dShape{2, 5, 10, 7, 7, {3, 2}, {2, 1}, {1, 0, 2, 1}, {1, 2}},
                    Conv2dShape{1, 16, 12, 12, 16, {3, 3}, {1, 1}, {2, 2, 2, 2}, {2, 2}},
                    // Groups, and one group per channel.
                    Conv2dShape{2, 8, 6, 5, 12, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 4},
                    Conv2dShape{2, 64, 6, 6, 64, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 2},
                    Conv2dShape{2, 19, 6, 6, 19, {3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}, 19}));

TEST_P(ConvolutionTest, ForwardIsTheCrossCorrelationPlusTheBias) {
  std::vector<double> expected(dy_.size(), 0.0);
  reference_.ForEachProduct(
      [&](int64_t out, int64_t in, int64_t tap) { expected[out] += double{x_[in]} * w_[tap]; });
  ExpectClose(Forward({}), expected, shape_.patch());

  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] += bias_[i / shape_.pixels() % shape_.outputs];
  }
  ExpectClose(Forward({.bias = true}), expected, shape_.patch());

  for (double& v : expected) v = std::max(v, 0.0);
  ExpectClose(Forward({.bias = true, .epilogue = Conv2dEpilogue::kRelu}), expected, shape_.patch());
}

TEST_P(ConvolutionTest, GradInputGathersEveryProduct) {
  std::vector<double> expected(x_.size(), 0.0);
  reference_.ForEachProduct(
      [&](int64_t out, int64_t in, int64_t tap) { expected[in] += double{dy_[out]} * w_[tap]; });
  Conv2dGradInput grad(shape_);
  Scratch workspace(grad.workspace_bytes());
  const Floats dy = ToLayout(dy_, grad.dy_layout());
  Floats dx(FloatsIn(grad.dx_layout(), x_.size()), NAN);

  grad.Run(dx.data(), dy.data(), w_.data(), workspace.data());

  ExpectClose(FromLayout(dx, grad.dx_layout(), x_.size()), expected,
              shape_.outputs * shape_.kernel[0] * shape_.kernel[1]);
}

TEST_P(ConvolutionTest, GradWeightGathersEveryProduct) {
  std::vector<double> expected(w_.size(), 0.0);
  reference_.ForEachProduct(
      [&](int64_t out, int64_t in, int64_t tap) { expected[tap] += double{dy_[out]} * x_[in]; });
  Conv2dGradWeight grad(shape_);
  Scratch workspace(grad.workspace_bytes());
  const Floats x = ToLayout(x_, grad.x_layout()), dy = ToLayout(dy_, grad.dy_layout());
  Floats dw(w_.size(), NAN);

  grad.Run(dw.data(), dy.data(), x.data(), workspace.data());

  ExpectClose(dw, expected, shape_.batch * shape_.pixels());
}

TEST_P(ConvolutionTest, GradBiasSumsEachChannelInEveryLayout) {
  std::vector<double> expected(shape_.outputs, 0.0);
  for (size_t i = 0; i < dy_.size(); ++i) {
    expected[i / shape_.pixels() % shape_.outputs] += dy_[i];
  }
  for (const Layout& layout : ImageLayouts(
           {shape_.batch, shape_.outputs, shape_.output_height(), shape_.output_width()})) {
    Floats db(shape_.outputs, NAN);
    Conv2dGradBias(db.data(), ToLayout(dy_, layout).data(), shape_.batch, shape_.outputs,
                   shape_.pixels(), layout);
    ExpectClose(db, expected, shape_.batch * shape_.pixels());
  }
}

TEST_P(ConvolutionTest, BiasIsAddedToEachChannelInEveryLayout) {
  Floats expected = dy_;
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] += bias_[i / shape_.pixels() % shape_.outputs];
  }
  for (const Layout& layout : ImageLayouts(
           {shape_.batch, shape_.outputs, shape_.output_height(), shape_.output_width()})) {
    Floats y = ToLayout(dy_, layout);
    AddChannelBias(y.data(), bias_.data(), shape_.batch, shape_.outputs, shape_.pixels(), layout);
    EXPECT_EQ(FromLayout(y, layout, dy_.size()), expected);
    EXPECT_EQ(y, ToLayout(expected, layout)) << "what lies beyond the channels is no longer zero";
  }
}

TEST_P(ConvolutionTest, RunsRepeatToTheBit) {
  EXPECT_EQ(Forward({.bias = true}), Forward({.bias = true}));
}

TEST_P(ConvolutionTest, BatchNormIsFoldedIntoTheWeights) {
  const Floats mean = Normals(shape_.outputs, 5), shift = Normals(shape_.outputs, 6),
               gain = Normals(shape_.outputs, 7);
  Floats variance = Normals(shape_.outputs, 8);
  for (float& v : variance) v *= v;
  const float epsilon = 0.1f;
  std::vector<double> expected(dy_.size(), 0.0);
  reference_.ForEachProduct(
      [&](int64_t out, int64_t in, int64_t tap) { expected[out] += double{x_[in]} * w_[tap]; });
  for (size_t i = 0; i < expected.size(); ++i) {
    const int64_t o = i / shape_.pixels() % shape_.outputs;
    const double normal = (expected[i] + bias_[o] - mean[o]) / std::sqrt(variance[o] + epsilon);
    expected[i] = std::max(normal * gain[o] + shift[o], 0.0);
  }
  Conv2dBatchNormRelu conv(shape_);
  Scratch workspace(conv.workspace_bytes());
  const Floats x = ToLayout(x_, conv.x_layout());
  Floats y(FloatsIn(conv.y_layout(), dy_.size()), NAN);

  conv.Run(y.data(), x.data(), w_.data(), bias_.data(),
           {mean.data(), variance.data(), shift.data(), gain.data(), epsilon}, workspace.data());

  ExpectClose(FromLayout(y, conv.y_layout(), dy_.size()), expected, 4 * shape_.patch());
}

TEST(ConvolutionTest, NanIsSeenThroughTheRectifier) {
  const Conv2dShape shape{1, 16, 4, 4, 16, {3, 3}, {1, 1}, {1, 1, 1, 1}};
  Conv2d conv(shape, {.epilogue = Conv2dEpilogue::kRelu});
  Scratch workspace(conv.workspace_bytes());
  const Floats x(16 * 16, NAN), w(16 * shape.patch(), 1.0f);
  Floats y(16 * 16, 0.0f);

  conv.Run(y.data(), x.data(), w.data(), nullptr, workspace.data());

  for (float v : y) EXPECT_TRUE(std::isnan(v));
}

}  // namespace
}  // namespace muster::kernels::convolution_test
