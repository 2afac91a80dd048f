#include "kernels/convolution.h"

#include "kernels/comparison.h"
#include "kernels/reference.h"

namespace muster::kernels {
namespace {

class ConvolutionTest : public testing::TestWithParam<Conv2dShape> {
 protected:
  const Conv2dShape shape_ = GetParam();
  const reference::Convolution reference_{shape_.batch,  shape_.channels, shape_.height,
                                          shape_.width,  shape_.outputs,  shape_.kernel,
                                          shape_.stride, shape_.padding};
  const Floats x_ = Normals(shape_.batch * shape_.channels * shape_.height * shape_.width, 1);
  const Floats w_ = Normals(shape_.outputs * shape_.patch(), 2);
  const Floats bias_ = Normals(shape_.outputs, 3);
  const Floats dy_ = Normals(shape_.batch * shape_.outputs * shape_.pixels(), 4);
  Floats workspace_ = Floats(shape_.workspace_floats(), NAN);
};

INSTANTIATE_TEST_SUITE_P(
    OddSizes, ConvolutionTest,
    testing::Values(Conv2dShape{1, 1, 1, 1, 1, 1}, Conv2dShape{2, 3, 7, 5, 4, 3},
                    Conv2dShape{3, 2, 9, 11, 5, 5, 1, 2}, Conv2dShape{2, 3, 8, 7, 3, 3, 2, 1},
                    Conv2dShape{1, 2, 2, 3, 2, 3, 3, 2}, Conv2dShape{2, 1, 28, 28, 6, 5, 1, 2},
                    Conv2dShape{1, 2, 6, 6, 3, 2, 3, 0}));

TEST_P(ConvolutionTest, ForwardIsTheCrossCorrelationPlusTheBias) {
  std::vector<double> expected(dy_.size(), 0.0);
  reference_.ForEachProduct(
      [&](int64_t out, int64_t in, int64_t tap) { expected[out] += double{x_[in]} * w_[tap]; });
  Floats y(expected.size(), NAN);

  Conv2d(y.data(), x_.data(), w_.data(), nullptr, workspace_.data(), shape_);
  ExpectClose(y, expected, shape_.patch());

  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] += bias_[i / shape_.pixels() % shape_.outputs];
  }
  Conv2d(y.data(), x_.data(), w_.data(), bias_.data(), workspace_.data(), shape_);
  ExpectClose(y, expected, shape_.patch());
}

TEST_P(ConvolutionTest, DerivativesGatherEveryProduct) {
  std::vector<double> expected_dx(x_.size(), 0.0), expected_dw(w_.size(), 0.0);
  reference_.ForEachProduct([&](int64_t out, int64_t in, int64_t tap) {
    expected_dx[in] += double{dy_[out]} * w_[tap];
    expected_dw[tap] += double{dy_[out]} * x_[in];
  });
  std::vector<double> expected_db(shape_.outputs, 0.0);
  for (size_t i = 0; i < dy_.size(); ++i) {
    expected_db[i / shape_.pixels() % shape_.outputs] += dy_[i];
  }
  Floats dx(x_.size(), NAN), dw(w_.size(), NAN), db(shape_.outputs, NAN);

  Conv2dGradInput(dx.data(), dy_.data(), w_.data(), workspace_.data(), shape_);
  Conv2dGradWeight(dw.data(), dy_.data(), x_.data(), workspace_.data(), shape_);
  Conv2dGradBias(db.data(), dy_.data(), shape_);

  ExpectClose(dx, expected_dx, shape_.outputs * shape_.kernel * shape_.kernel);
  ExpectClose(dw, expected_dw, shape_.batch * shape_.pixels());
  ExpectClose(db, expected_db, shape_.batch * shape_.pixels());
}

}  // namespace
}  // namespace muster::kernels
