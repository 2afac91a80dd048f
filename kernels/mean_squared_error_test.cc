#include "kernels/mean_squared_error.h"

#include "kernels/comparison.h"

namespace muster::kernels::mean_squared_error_test {
namespace {

class MeanSquaredErrorTest : public testing::TestWithParam<int64_t> {};

INSTANTIATE_TEST_SUITE_P(OddSizes, MeanSquaredErrorTest, testing::Values(1, 2, 17, 1001, 40000));

TEST_P(MeanSquaredErrorTest, LossAndDerivativeMatchTheirFormulas) {
  const int64_t n = GetParam();
  const Floats prediction = Normals(n, 1), target = Normals(n, 2);
  double expected_loss = 0;
  std::vector<double> expected_grad;
  for (int64_t i = 0; i < n; ++i) {
    const double difference = double{prediction[i]} - target[i];
    expected_loss += difference * difference / n;
    expected_grad.push_back(0.5 * 2 * difference / n);
  }
  float loss = NAN;
  Floats grad(n, NAN);

  MeanSquaredError(&loss, prediction.data(), target.data(), 1.0f / n, n);
  MeanSquaredErrorGrad(grad.data(), prediction.data(), target.data(), 0.5f / n, n);

  EXPECT_NEAR(loss, expected_loss, 1e-6 * expected_loss);
  ExpectClose(grad, expected_grad);
}

}  // namespace
}  // namespace muster::kernels::mean_squared_error_test
