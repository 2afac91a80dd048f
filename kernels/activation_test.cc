#include "kernels/activation.h"

#include <algorithm>
#include <limits>
#include <numbers>
#include <vector>

#include "kernels/comparison.h"

namespace muster::kernels::activation_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

double ReluOf(double x) { return std::max(x, 0.0); }
double SiluOf(double x) { return x / (1 + std::exp(-x)); }
double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }
double NegOf(double x) { return -x; }
double GeluOf(double x) {
  const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return x / (1 + std::exp(-2 * u));
}
double GeluExactOf(double x) { return 0.5 * x * std::erfc(-x / std::numbers::sqrt2); }

// Functions with fixed constants, because the tests take functions of x alone.
void Elu7(float* y, const float* x, int64_t n) { Elu(y, x, 0.7f, n); }
double Elu7Of(double x) { return x > 0 ? x : 0.7f * std::expm1(x); }
void Elu7Grad(float* dx, const float* dy, const float* x, int64_t n) {
  EluGrad(dx, dy, x, 0.7f, n);
}
void LeakyRelu3(float* y, const float* x, int64_t n) { LeakyRelu(y, x, 0.3f, n); }
double LeakyRelu3Of(double x) { return x > 0 ? x : 0.3f * x; }
void LeakyRelu3Grad(float* dx, const float* dy, const float* x, int64_t n) {
  LeakyReluGrad(dx, dy, x, 0.3f, n);
}
void HardSigmoid6(float* y, const float* x, int64_t n) { HardSigmoid(y, x, 0.6f, 0.25f, n); }
double HardSigmoid6Of(double x) { return std::clamp(0.6f * x + 0.25, 0.0, 1.0); }
void HardSigmoid6Grad(float* dx, const float* dy, const float* x, int64_t n) {
  HardSigmoidGrad(dx, dy, x, 0.6f, 0.25f, n);
}
void ClipOf2(float* y, const float* x, int64_t n) { Clip(y, x, -0.5f, 2, n); }
double Clip2Of(double x) { return std::clamp(x, -0.5, 2.0); }
void Clip2Grad(float* dx, const float* dy, const float* x, int64_t n) {
  ClipGrad(dx, dy, x, -0.5f, 2, n);
}

struct Case {
  const char* name;
  void (*kernel)(float*, const float*, int64_t);
  double (*expected)(double);
  float low, high;
  double floor = 0;  // smaller results may err by the tolerance of this one
};

class ActivationTest : public testing::TestWithParam<Case> {};

const Case kCases[] = {
    {"Relu", Relu, ReluOf, -3, 3},
    {"Silu", Silu, SiluOf, -80, 80},
    {"Tanh", Tanh, [](double x) { return std::tanh(x); }, -12, 12},
    {"Sigmoid", Sigmoid, SigmoidOf, -80, 80},
    {"Erf", Erf, [](double x) { return std::erf(x); }, -6, 6},
    {"Exp", Exp, [](double x) { return std::exp(x); }, -87, 88.7f},
    {"Log", Log, [](double x) { return std::log(x); }, 1e-6f, 50},
    {"Sqrt", Sqrt, [](double x) { return std::sqrt(x); }, 0, 50},
    {"Neg", Neg, NegOf, -3, 3},
    // The floor is needed because the rounding of the gate's exponent causes an error of up to |2u|
    // half ulps.
    {"Gelu", Gelu, GeluOf, -6, 30, 1e-2},
    {"GeluExact", GeluExact, GeluExactOf, -12, 12, 1e-2},
    {"Abs", Abs, [](double x) { return std::abs(x); }, -3, 3},
    {"Sin", Sin, [](double x) { return std::sin(x); }, -900, 900},
    {"Cos", Cos, [](double x) { return std::cos(x); }, -900, 900},
    {"Softplus", Softplus, [](double x) { return std::log1p(std::exp(x)); }, -80, 80},
    {"Elu", Elu7, Elu7Of, -80, 3},
    {"LeakyRelu", LeakyRelu3, LeakyRelu3Of, -3, 3},
    {"HardSigmoid", HardSigmoid6, HardSigmoid6Of, -5, 5, 1},
    {"Clip", ClipOf2, Clip2Of, -3, 3},
    {"Floor", Floor, [](double x) { return std::floor(x); }, -5, 5},
    {"Ceil", Ceil, [](double x) { return std::ceil(x); }, -5, 5},
    {"Round", Round, [](double x) { return std::nearbyint(x); }, -5, 5},
    {"Sign", Sign, [](double x) { return double(x > 0) - double(x < 0); }, -1, 1},
};

INSTANTIATE_TEST_SUITE_P(All, ActivationTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(ActivationTest, EveryValueIsWithinOneMillionth) {
  const Case& c = GetParam();
  Floats x;
  for (int i = 0; i <= 20011; ++i) x.push_back(c.low + (c.high - c.low) * i / 20011);
  for (float tiny : {1e-20f, 3e-5f, 0.01f}) x.push_back(std::max(c.low, tiny));
  Floats y(x.size(), NAN);

  c.kernel(y.data(), x.data(), x.size());

  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = c.expected(x[i]);
    ASSERT_NEAR(y[i], expected, 1e-6 * std::max(std::abs(expected), c.floor) + 1e-37)
        << "x = " << x[i];
  }
}

TEST_P(ActivationTest, AnElementsValueDoesNotDependOnItsPlaceAndMayBeOverwritten) {
  for (int64_t n : {0, 1, 3, 16, 17, 63, 1000}) {
    Floats x = Normals(n, 1), y(n, NAN);
    for (float& v : x) v = std::abs(v);
    GetParam().kernel(y.data(), x.data(), n);
    for (int64_t i = 0; i < n; ++i) {
      float alone = NAN;
      GetParam().kernel(&alone, &x[i], 1);
      ASSERT_EQ(y[i], alone);
    }
    GetParam().kernel(x.data(), x.data(), n);
    EXPECT_EQ(x, y);
  }
}

TEST_P(ActivationTest, NanStaysNan) {
  float x = kNan;
  GetParam().kernel(&x, &x, 1);
  EXPECT_TRUE(std::isnan(x));
}

TEST_P(ActivationTest, ThreadsDoNotChangeTheResult) {
  const Floats x = Normals(100003, 1);
  ExpectSameOnAnyThreads([&] {
    Floats y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = std::abs(x[i]);
    GetParam().kernel(y.data(), y.data(), y.size());
    return y;
  });
}

struct Derivative {
  const char* name;
  void (*kernel)(float*, const float*, const float*, int64_t);
  double (*function)(double);
  bool from_value;  // takes y, not x
  float low = -20, high = 20;
};

class DerivativeTest : public testing::TestWithParam<Derivative> {};

const Derivative kDerivatives[] = {
    {"TanhGrad", TanhGrad, [](double x) { return std::tanh(x); }, true, -2, 2},
    {"SigmoidGrad", SigmoidGrad, SigmoidOf, true, -4, 4},
    {"ExpGrad", ExpGrad, [](double x) { return std::exp(x); }, true, -5, 5},
    {"SqrtGrad", SqrtGrad, [](double x) { return std::sqrt(x); }, true, 0.1f, 9},
    {"SiluGrad", SiluGrad, SiluOf, false},
    {"GeluGrad", GeluGrad, GeluOf, false},
    {"GeluExactGrad", GeluExactGrad, GeluExactOf, false},
    {"ErfGrad", ErfGrad, [](double x) { return std::erf(x); }, false},
    {"LogGrad", LogGrad, [](double x) { return std::log(x); }, false, 0.1f, 9},
    {"AbsGrad", AbsGrad, [](double x) { return std::abs(x); }, false},
    {"SinGrad", SinGrad, [](double x) { return std::sin(x); }, false},
    {"CosGrad", CosGrad, [](double x) { return std::cos(x); }, false},
    {"SoftplusGrad", SoftplusGrad, [](double x) { return std::log1p(std::exp(x)); }, false},
    {"EluGrad", Elu7Grad, Elu7Of, false},
    {"LeakyReluGrad", LeakyRelu3Grad, LeakyRelu3Of, false},
    {"HardSigmoidGrad", HardSigmoid6Grad, HardSigmoid6Of, false},
    {"ClipGrad", Clip2Grad, Clip2Of, false},
};

INSTANTIATE_TEST_SUITE_P(All, DerivativeTest, testing::ValuesIn(kDerivatives),
                         [](const auto& info) { return info.param.name; });

TEST_P(DerivativeTest, IsTheSlopeOfTheFunctionTimesDy) {
  const Derivative& c = GetParam();
  for (int64_t n : {1, 17, 3001}) {
    const Floats dy = Normals(n, 1);
    Floats saved(n), dx(n, NAN);
    std::vector<double> slopes;
    for (int64_t i = 0; i < n; ++i) {
      const double x = saved[i] = c.low + (c.high - c.low) * (i + 0.37f) / n;
      const double h = 1e-5;
      slopes.push_back((c.function(x + h) - c.function(x - h)) / (2 * h));
      if (c.from_value) saved[i] = static_cast<float>(c.function(x));
    }

    c.kernel(dx.data(), dy.data(), saved.data(), n);

    for (int64_t i = 0; i < n; ++i) {
      // 2.5e-6 covers the kernel's error, and the effect of rounding y on 1 - y². 1e-9 covers the
      // difference quotient.
      const double tolerance = 2.5e-6 * std::max(1.0, std::abs(slopes[i])) + 1e-9;
      ASSERT_NEAR(dx[i], slopes[i] * dy[i], tolerance * (1e-3 + std::abs(dy[i])))
          << "saved " << saved[i];
    }
    Floats in_place = dy;
    c.kernel(in_place.data(), in_place.data(), saved.data(), n);
    EXPECT_EQ(in_place, dx);
    c.kernel(saved.data(), dy.data(), saved.data(), n);
    EXPECT_EQ(saved, dx);
  }
}

TEST(ReluTest, DerivativeIsZeroUnlessTheOutputIsPositive) {
  const Floats y = {0, 2, 0, 1e-30f}, dy = {5, 6, 7, 8};
  Floats dx(4, NAN);
  ReluGrad(dx.data(), dy.data(), y.data(), 4);
  EXPECT_EQ(dx, (Floats{0, 6, 0, 8}));
}

TEST(BendsTest, DerivativesAtBendsAreAsDocumented) {
  const Floats x = {-1, -0.5f, 0, 2, 3}, dy = {5, 6, 7, 8, 9};
  Floats dx(5, NAN);
  AbsGrad(dx.data(), dy.data(), x.data(), 5);
  EXPECT_EQ(dx, (Floats{-5, -6, 0, 8, 9}));
  LeakyReluGrad(dx.data(), dy.data(), x.data(), 0.5f, 5);
  EXPECT_EQ(dx, (Floats{2.5f, 3, 3.5f, 8, 9}));
  ClipGrad(dx.data(), dy.data(), x.data(), -0.5f, 2, 5);
  EXPECT_EQ(dx, (Floats{0, 6, 7, 8, 0}));
  HardSigmoidGrad(dx.data(), dy.data(), x.data(), 0.5f, 0.25f, 5);  // 0 at -0.5, 1 at 1.5
  EXPECT_EQ(dx, (Floats{0, 0, 3.5f, 0, 0}));
}

TEST(StepsTest, HalvesRoundToEvenAndTheSignOfZeroIsZero) {
  const Floats x = {-2.5f, -1.5f, -0.5f, 0.5f, 1.5f, 2.5f, 0x1p24f};
  Floats y(x.size());
  Round(y.data(), x.data(), x.size());
  EXPECT_EQ(y, (Floats{-2, -2, 0, 0, 2, 2, 0x1p24f}));
  const Floats signed_values = {-kInfinity, -1e-40f, 0, 1e-40f, kInfinity};
  Sign(y.data(), signed_values.data(), 5);
  EXPECT_EQ(Floats(y.begin(), y.begin() + 5), (Floats{-1, -1, 0, 1, 1}));
}

TEST(StepsTest, OnlyNanIsNan) {
  Floats x(21, kNan);
  x[0] = kInfinity;
  x[7] = -kInfinity;
  x[19] = 0;
  std::vector<int32_t> y(x.size(), 7);
  IsNan(y.data(), x.data(), x.size());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], std::isnan(x[i]) ? 1 : 0);
}

TEST(ClipTest, AnUpperBoundBelowTheLowerOneWins) {
  Floats x = {-3, 0, 3};
  Clip(x.data(), x.data(), 1, -1, 3);
  EXPECT_EQ(x, (Floats{-1, -1, -1}));
}

TEST(ActivationTest, ExtremesSaturate) {
  const Floats x = {-1e9f, 1e9f, -kInfinity, kInfinity, 0.0f};
  Floats y(x.size());
  Gelu(y.data(), x.data(), 2);
  EXPECT_NEAR(y[0], 0, 1e-20);
  EXPECT_EQ(y[1], 1e9f);
  Tanh(y.data(), x.data(), 5);
  EXPECT_EQ(y, (Floats{-1, 1, -1, 1, 0}));
  Sigmoid(y.data(), x.data(), 5);
  EXPECT_EQ(y, (Floats{0, 1, 0, 1, 0.5f}));
  Erf(y.data(), x.data(), 5);
  EXPECT_EQ(y, (Floats{-1, 1, -1, 1, 0}));
  Exp(y.data(), x.data(), 5);
  EXPECT_EQ(y, (Floats{0, kInfinity, 0, kInfinity, 1}));
  Elu(y.data(), x.data(), 2, 5);
  EXPECT_EQ(y, (Floats{-2, 1e9f, -2, kInfinity, 0}));
  Softplus(y.data(), x.data(), 4);
  EXPECT_EQ(Floats(y.begin(), y.begin() + 4), (Floats{0, 1e9f, 0, kInfinity}));
  Log(y.data(), x.data() + 2, 3);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], kInfinity);
  EXPECT_EQ(y[2], -kInfinity);
}

TEST(ActivationTest, LogTakesSubnormals) {
  const float x = 1e-40f;
  float y;
  Log(&y, &x, 1);
  EXPECT_NEAR(y, std::log(double{x}), 1e-5);
}

TEST(ActivationTest, DerivativesOfLargeArgumentsAreFinite) {
  const Floats x = {-1e20f, 1e20f}, dy = {1, 1};
  Floats dx(2);
  GeluGrad(dx.data(), dy.data(), x.data(), 2);
  EXPECT_EQ(dx, (Floats{0, 1}));
  GeluExactGrad(dx.data(), dy.data(), x.data(), 2);
  EXPECT_EQ(dx, (Floats{0, 1}));
  SiluGrad(dx.data(), dy.data(), x.data(), 2);
  EXPECT_EQ(dx, (Floats{0, 1}));
}

}  // namespace
}  // namespace muster::kernels::activation_test
