#include "kernels/cuda/activation.h"

#include "kernels/conversion.h"
#include "kernels/cuda/emulation/device_memory.h"

namespace muster::kernels::cuda::emulation {
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
      // In place.
      ASSERT_EQ(ApplyGrad(Function::kGeluExact, dy_on.data(), dy_on.data(), x_on.data(), n, type,
                          nullptr),
                cudaSuccess);
      ExpectRounded(dy_on.Read(type), gelu_grad, type, 64);
    }
  });
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

// The kernels' conversions are those of the CPU, to the bit: the device's own are not emulated, but
// what the emulation puts in their place is right.
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
}  // namespace muster::kernels::cuda::emulation
