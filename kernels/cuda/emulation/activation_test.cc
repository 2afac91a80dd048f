#include "kernels/cuda/activation.h"

#include "kernels/conversion.h"
#include "kernels/cuda/emulation/device_memory.h"

namespace muster::kernels::cuda::emulation::activation_test {
namespace {

constexpr int64_t kSizes[] = {1, 3, 8, 257, 2051};

TEST(ActivationTest, FunctionsAndDerivativesAtOddSizes) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  ForEveryRun([&](Type type) {
    for (int64_t n : kSizes) {
      const Floats x = Rounded(Normals(n, 1), type), dy = Rounded(Normals(n, 2), type);
      std::vector<double> silu(n), relu_grad(n), gelu_grad(n);
      for (int64_t i = 0; i < n; ++i) {
        silu[i] = x[i] * sigmoid(x[i]);
        relu_grad[i] = x[i] > 0 ? dy[i] : 0;
        const double density = std::exp(-0.5 * x[i] * x[i]) / std::sqrt(2 * M_PI);
        gelu_grad[i] = dy[i] * (0.5 * (1 + std::erf(x[i] / std::sqrt(2.0))) + x[i] * density);
      }
      DeviceMemory x_on(x, type), dy_on(dy, type), y(n * Bytes(type)), dx(n * Bytes(type));

      ASSERT_EQ(Apply(Function::kSilu, y.data(), x_on.data(), n, type, nullptr), cudaSuccess);
      ExpectRounded(y.Read(type), silu, type);
      ASSERT_EQ(ApplyGrad(Function::kRelu, dx.data(), dy_on.data(), x_on.data(), n, type, nullptr),
                cudaSuccess);
      ExpectRounded(dx.Read(type), relu_grad, type);
      // The output is an input.
      ASSERT_EQ(ApplyGrad(Function::kGeluExact, dy_on.data(), dy_on.data(), x_on.data(), n, type,
                          nullptr),
                cudaSuccess);
      ExpectRounded(dy_on.Read(type), gelu_grad, type, 64);
    }
  });
}

struct Bent {
  const char* name;
  Curve curve;
  double (*value)(double x);
  double (*slope)(double x);  // null: a step
};

TEST(ActivationTest, ElementaryFunctionsAndTheirDerivatives) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const Bent bents[] = {
      {"abs", Function::kAbs, std::abs, [](double x) { return double(x > 0) - double(x < 0); }},
      {"sin", Function::kSin, std::sin, std::cos},
      {"cos", Function::kCos, std::cos, [](double x) { return -std::sin(x); }},
      {"softplus", Function::kSoftplus, [](double x) { return std::log1p(std::exp(x)); }, sigmoid},
      {"elu",
       {Function::kElu, 0.5f},
       [](double x) { return x > 0 ? x : 0.5 * std::expm1(x); },
       [](double x) { return x > 0 ? 1 : 0.5 * std::exp(x); }},
      {"leaky relu",
       {Function::kLeakyRelu, 0.25f},
       [](double x) { return x > 0 ? x : 0.25 * x; },
       [](double x) { return x > 0 ? 1 : 0.25; }},
      {"hard sigmoid",
       {Function::kHardSigmoid, 0.5f, 0.25f},
       [](double x) { return std::clamp(0.5 * x + 0.25, 0.0, 1.0); },
       [](double x) { return x > -0.5 && x < 1.5 ? 0.5 : 0; }},
      {"clip",
       {Function::kClip, -0.5f, 1},
       [](double x) { return std::clamp(x, -0.5, 1.0); },
       [](double x) { return x >= -0.5 && x <= 1 ? 1.0 : 0; }},
      {"floor", Function::kFloor, std::floor, nullptr},
      {"ceil", Function::kCeil, std::ceil, nullptr},
      {"round", Function::kRound, std::nearbyint, nullptr},
      {"sign", Function::kSign, [](double x) { return double(x > 0) - double(x < 0); }, nullptr},
  };
  ForEveryRun([&](Type type) {
    const int64_t n = 257;
    Floats x = Rounded(Normals(n, 1), type), dy = Rounded(Normals(n, 2), type);
    const Floats bends = {0, -0.5f, 1, 1.5f, 2.5f, -1.5f};
    std::copy(bends.begin(), bends.end(), x.begin());
    DeviceMemory x_on(x, type), dy_on(dy, type);
    for (const Bent& bent : bents) {
      SCOPED_TRACE(bent.name);
      DeviceMemory y(n * Bytes(type)), dx(n * Bytes(type));
      std::vector<double> values, slopes;
      for (int64_t i = 0; i < n; ++i) {
        values.push_back(bent.value(x[i]));
        slopes.push_back(bent.slope == nullptr ? 0 : dy[i] * bent.slope(x[i]));
      }
      ASSERT_EQ(Apply(bent.curve, y.data(), x_on.data(), n, type, nullptr), cudaSuccess);
      ExpectRounded(y.Read(type), values, type);
      const cudaError_t error =
          ApplyGrad(bent.curve, dx.data(), dy_on.data(), x_on.data(), n, type, nullptr);
      ASSERT_EQ(error, bent.slope == nullptr ? cudaErrorInvalidValue : cudaSuccess);
      if (bent.slope != nullptr) ExpectRounded(dx.Read(type), slopes, type);
    }
  });
}

TEST(ActivationTest, NansAreFound) {
  ForEveryRun([&](Type type) {
    for (int64_t n : kSizes) {
      Floats x = Normals(n, 1);
      for (int64_t i = 0; i < n; i += 3) x[i] = i % 2 == 0 ? NAN : INFINITY;
      DeviceMemory x_on(x, type), y(4 * n);
      ASSERT_EQ(IsNan(y.ints(), x_on.data(), n, type, nullptr), cudaSuccess);
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(y.ints()[i], std::isnan(x[i]) ? 1 : 0);
    }
  });
}

TEST(ActivationTest, BatchSharesDivideByTheGlobalBatchAndScaleGradients) {
  const RunNumbers numbers = {.loss_scale = 8, .samples = 3, .batch = 12};
  const Floats x = {6}, ones = {1};
  DeviceMemory x_on(x, Type::kF32), y(4), dx(4), statistic(4), ones_on(ones, Type::kF32);
  ASSERT_EQ(BatchShare(y.floats(), x_on.floats(), &numbers, nullptr), cudaSuccess);
  ASSERT_EQ(BatchShareGrad(dx.floats(), &numbers, nullptr), cudaSuccess);
  ASSERT_EQ(WeighStatistic(statistic.floats(), ones_on.floats(), &numbers, 1, nullptr),
            cudaSuccess);
  EXPECT_EQ(y.floats()[0], 1.5f);
  EXPECT_EQ(dx.floats()[0], 2);
  EXPECT_EQ(statistic.floats()[0], 2);
}

TEST(ActivationTest, PositionsCountUp) {
  for (int64_t n : kSizes) {
    DeviceMemory y(4 * n);
    ASSERT_EQ(FillPositions(y.ints(), n, nullptr), cudaSuccess);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(y.ints()[i], i);
  }
}

TEST(ActivationTest, TermsAddUpAndGradientsAreExported) {
  ForEveryRun([&](Type type) {
    for (int64_t n : kSizes) {
      const Floats a = Rounded(Normals(n, 1), type), b = Rounded(Normals(n, 2), type);
      std::vector<double> sum(n), exported(n);
      for (int64_t i = 0; i < n; ++i) {
        sum[i] = double{a[i]} + b[i] + a[i];
        exported[i] = double{a[i]} / 8 + a[i] / 8;
      }
      DeviceMemory a_on(a, type), b_on(b, type), y(n * Bytes(type)), to(n * 4);
      const void* terms[] = {a_on.data(), b_on.data(), a_on.data()};
      RunNumbers numbers = {.loss_scale = 8, .gradients = Export::kAssign};

      ASSERT_EQ(Accumulate(y.data(), terms, 3, n, type, nullptr), cudaSuccess);
      for (Export mode : {Export::kAssign, Export::kAdd, Export::kNone}) {
        numbers.gradients = mode;
        ASSERT_EQ(ExportGradient(to.floats(), a_on.data(), type, &numbers, n, nullptr),
                  cudaSuccess);
      }

      ExpectRounded(y.Read(type), sum, type);
      ExpectClose(to.Read(Type::kF32), exported);
    }
  });
}

// The emulated conversions equal the CPU's bit for bit. The device's own conversions are not tested
// here.
TEST(ActivationTest, ConversionsAreThoseOfTheCpu) {
  Floats x = Normals(5000, 1);
  for (size_t i = 0; i < x.size(); i += 3) x[i] = std::ldexp(x[i], static_cast<int>(i % 60) - 40);
  for (float v : {0.0f, -0.0f, INFINITY, -INFINITY, 65504.0f, 65519.9f, 65520.0f, 0x1p-24f,
                  0x1p-25f, 0x1.8p-25f, 3.4e38f}) {
    x.push_back(v);
  }
  const auto n = static_cast<int64_t>(x.size());
  for (Type type : {Type::kBf16, Type::kF16}) {
    const ElementType on_cpu = type == Type::kBf16 ? ElementType::kBf16 : ElementType::kF16;
    std::vector<uint16_t> narrow(n), expected(n);
    Floats wide(n), expected_wide(n);
    ASSERT_EQ(Convert(narrow.data(), type, x.data(), Type::kF32, n, nullptr), cudaSuccess);
    ASSERT_EQ(Convert(wide.data(), Type::kF32, narrow.data(), type, n, nullptr), cudaSuccess);
    kernels::Convert(expected.data(), on_cpu, x.data(), ElementType::kF32, n);
    kernels::Convert(expected_wide.data(), ElementType::kF32, expected.data(), on_cpu, n);
    EXPECT_EQ(narrow, expected);
    EXPECT_EQ(wide, expected_wide);
  }
}

}  // namespace
}  // namespace muster::kernels::cuda::emulation::activation_test
