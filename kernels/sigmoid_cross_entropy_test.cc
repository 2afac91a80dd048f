#include "kernels/sigmoid_cross_entropy.h"

#include "kernels/comparison.h"

namespace muster::kernels::sigmoid_cross_entropy_test {
namespace {

class SigmoidCrossEntropyTest : public testing::TestWithParam<int64_t> {};

INSTANTIATE_TEST_SUITE_P(OddSizes, SigmoidCrossEntropyTest,
                         testing::Values(1, 2, 16, 17, 1001, 20000));

TEST_P(SigmoidCrossEntropyTest, LossAndDerivativeMatchTheirFormulas) {
  const int64_t n = GetParam();
  const Floats logits = Normals(n, 1);
  Floats target = Normals(n, 2);
  double expected_loss = 0;
  std::vector<double> expected_grad;
  for (int64_t i = 0; i < n; ++i) {
    target[i] = target[i] > 0 ? 1 : target[i] > -0.5f ? 0 : 0.25f;  // labels may be soft
    const double p = 1 / (1 + std::exp(-double{logits[i]}));
    expected_loss -= 0.5 * (target[i] * std::log(p) + (1 - target[i]) * std::log1p(-p));
    expected_grad.push_back(0.5 * (p - target[i]));
  }
  float loss = NAN;
  Floats grad(n, NAN);

  SigmoidCrossEntropy(&loss, logits.data(), target.data(), 0.5f, n);
  SigmoidCrossEntropyGrad(grad.data(), logits.data(), target.data(), 0.5f, n);

  EXPECT_NEAR(loss, expected_loss, 1e-6 * expected_loss);
  ExpectClose(grad, expected_grad);
  SigmoidCrossEntropyGrad(target.data(), logits.data(), target.data(), 0.5f, n);
  EXPECT_EQ(target, grad);
}

TEST(SigmoidCrossEntropyTest, SureAnswersCostLittleAndWrongOnesTheirLogit) {
  const Floats logits = {90, -90, 90, -90, 20}, target = {1, 0, 0, 1, 1};
  const Floats expected = {0, 0, 90, 90, 2.0611537e-9f};
  for (int i = 0; i < 5; ++i) {
    float loss = NAN;
    SigmoidCrossEntropy(&loss, &logits[i], &target[i], 1.0f, 1);
    EXPECT_NEAR(loss, expected[i], 1e-6f * expected[i] + 1e-30f);
  }
}

}  // namespace
}  // namespace muster::kernels::sigmoid_cross_entropy_test
