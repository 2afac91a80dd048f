#include "kernels/softmax_cross_entropy.h"

#include <limits>

#include "kernels/comparison.h"
#include "kernels/reference.h"

namespace muster::kernels {
namespace {

class SoftmaxCrossEntropyTest : public testing::TestWithParam<ClassesShape> {
 protected:
  Floats Logits() const {
    Floats logits = Normals(shape_.rows * shape_.classes, 1);
    for (float& v : logits) v = 5 * v + 100;  // far from zero: the maximum must be taken out
    return logits;
  }

  const ClassesShape shape_ = GetParam();
  const Floats logits_ = Logits();
  const std::vector<int32_t> target_ = RandomIds(shape_.rows, shape_.classes, 2);
  Floats probabilities_ = Floats(logits_.size(), NAN);
};

INSTANTIATE_TEST_SUITE_P(OddSizes, SoftmaxCrossEntropyTest,
                         testing::Values(ClassesShape{1, 1}, ClassesShape{3, 2},
                                         ClassesShape{5, 10}, ClassesShape{4, 17},
                                         ClassesShape{9, 257}));

TEST_P(SoftmaxCrossEntropyTest, LossProbabilitiesAndDerivativeMatchTheirFormulas) {
  const auto [rows, classes] = shape_;
  std::vector<double> expected, expected_grad;
  double expected_loss = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = &logits_[r * classes];
    for (double p : reference::Softmax(std::vector<double>(row, row + classes))) {
      const bool hit = static_cast<int64_t>(expected.size()) == r * classes + target_[r];
      if (hit) expected_loss -= std::log(p) / rows;
      expected.push_back(p);
      expected_grad.push_back(0.25 * (p - hit) / rows);
    }
  }
  float loss = NAN;
  Floats dlogits(logits_.size(), NAN);

  SoftmaxCrossEntropy(&loss, probabilities_.data(), logits_.data(), target_.data(), shape_);
  SoftmaxCrossEntropyGrad(dlogits.data(), probabilities_.data(), target_.data(), 0.25f, shape_);

  // The differences of logits near 100 carry an absolute error of 2^-18 or so.
  EXPECT_NEAR(loss, expected_loss, 1e-5);
  ExpectClose(probabilities_, expected, 64);
  ExpectClose(dlogits, expected_grad, 64);
}

TEST(SoftmaxCrossEntropyTest, GradientMayOverwriteTheProbabilities) {
  const std::vector<int32_t> target = {2, 0};
  Floats p = {0.1f, 0.2f, 0.7f, 0.5f, 0.25f, 0.25f}, dlogits(6);
  SoftmaxCrossEntropyGrad(dlogits.data(), p.data(), target.data(), 1.0f, {2, 3});
  SoftmaxCrossEntropyGrad(p.data(), p.data(), target.data(), 1.0f, {2, 3});
  EXPECT_EQ(p, dlogits);
}

TEST(CorrectCountTest, CountsRowsWhoseFirstLargestLogitIsTheTarget) {
  const Floats logits = {1, 3, 2,  //
                         3, 1, 3,  //
                         3, 1, 3,  //
                         0, 1, NAN};
  const std::vector<int32_t> target = {1, 0, 2,
                                       1};  // hit, hit (first of a tie), second of a tie, NaN
  float count = NAN;
  CorrectCount(&count, logits.data(), target.data(), {4, 3});
  EXPECT_EQ(count, 2.0f);
}

}  // namespace
}  // namespace muster::kernels
