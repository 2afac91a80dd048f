#include "kernels/activation.h"

#include <limits>

#include "kernels/comparison.h"
#include "kernels/reference.h"

namespace muster::kernels {
namespace {

class ActivationTest : public testing::TestWithParam<int64_t> {};

INSTANTIATE_TEST_SUITE_P(OddSizes, ActivationTest, testing::Values(0, 1, 3, 16, 17, 63, 1000));

TEST_P(ActivationTest, ReluKeepsThePositiveAndItsDerivativeFollows) {
  const Floats x = Normals(GetParam(), 1), dy = Normals(GetParam(), 2);
  Floats y(x.size(), NAN), dx(x.size(), NAN);

  Relu(y.data(), x.data(), x.size());
  ReluGrad(dx.data(), dy.data(), y.data(), x.size());

  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(y[i], std::max(x[i], 0.0f));
    EXPECT_EQ(dx[i], x[i] > 0 ? dy[i] : 0.0f);
  }
}

TEST_P(ActivationTest, GeluDerivativeIsCloseToItsFormula) {
  const Floats x = Normals(GetParam(), 1), dy = Normals(GetParam(), 2);
  Floats dx(x.size(), NAN);
  std::vector<double> expected(x.size());
  for (size_t i = 0; i < x.size(); ++i) expected[i] = reference::GeluDerivative(x[i]) * dy[i];

  GeluGrad(dx.data(), dy.data(), x.data(), x.size());

  ExpectClose(dx, expected);
}

// Relative to each value and not to the largest: the gate does not cancel. 2 ulp of the
// exponential, whose argument of magnitude |2u| carries |2u| half ulps of relative error of its
// own.
TEST(GeluTest, EveryValueIsWithinAFewUlp) {
  Floats x;
  for (float v = -6.0f; v < 30.0f; v += 0.0037f) x.push_back(v);
  Floats y(x.size(), NAN);

  Gelu(y.data(), x.data(), x.size());

  for (size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    const double u = std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v);
    const double expected = v / (1 + std::exp(-2 * u));
    const double relative = (6 + (v < 0 ? 4 * std::abs(2 * u) : 0)) * 0x1p-24;
    ASSERT_NEAR(y[i], expected, relative * std::abs(expected) + 1e-44) << "x = " << v;
  }
}

TEST(GeluTest, ExtremesSaturateAndNanStaysNan) {
  const Floats x = {-1e9f, 1e9f, -40.0f, 40.0f, 0.0f, std::numeric_limits<float>::quiet_NaN()};
  Floats y(x.size());
  Gelu(y.data(), x.data(), x.size());
  EXPECT_NEAR(y[0], 0, 1e-20);
  EXPECT_EQ(y[1], 1e9f);
  EXPECT_NEAR(y[2], 0, 1e-20);
  EXPECT_EQ(y[3], 40.0f);
  EXPECT_EQ(y[4], 0.0f);
  EXPECT_TRUE(std::isnan(y[5]));
}

TEST(ReluTest, NanStaysNan) {
  float x = std::numeric_limits<float>::quiet_NaN();
  Relu(&x, &x, 1);
  EXPECT_TRUE(std::isnan(x));
}

}  // namespace
}  // namespace muster::kernels
