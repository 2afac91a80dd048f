#include "kernels/cuda/activation.h"

#include <cuda_runtime_api.h>

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/activation.h"

namespace muster::kernels {
namespace {

class CudaActivationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no CUDA device: " << cudaGetErrorString(error);
    }
  }

  // Runs `kernel(out, a, b)` on the device.
  template <typename Kernel>
  std::vector<float> OnDevice(const std::vector<float>& a, const std::vector<float>& b,
                              Kernel kernel) {
    const size_t bytes = a.size() * sizeof(float);
    float *da = nullptr, *db = nullptr, *dout = nullptr;
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&da), bytes + 4), cudaSuccess);
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&db), bytes + 4), cudaSuccess);
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&dout), bytes + 4), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(da, a.data(), bytes, cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(db, b.data(), bytes, cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_EQ(kernel(dout, da, db), cudaSuccess);
    std::vector<float> out(a.size());
    EXPECT_EQ(cudaMemcpy(out.data(), dout, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    cudaFree(da);
    cudaFree(db);
    cudaFree(dout);
    return out;
  }
};

// Both sides round a handful of operations and one exponential: 1e-6 of the value, or absolute near
// zero.
void ExpectClose(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-6 * (1 + std::abs(b[i]))) << i;
}

TEST_F(CudaActivationTest, AgreesWithTheCpuTwinOverOddSizes) {
  for (int64_t n : {0, 1, 255, 257, 100'003}) {
    std::vector<float> x(n), dy(n), cpu(n);
    for (int64_t i = 0; i < n; ++i) {
      x[i] = 0.01f * static_cast<float>(i % 1999 - 999);
      dy[i] = std::sin(static_cast<float>(i));
    }
    Relu(cpu.data(), x.data(), n);
    ExpectClose(
        OnDevice(x, dy, [&](float* y, float* a, float*) { return cuda::Relu(y, a, n, nullptr); }),
        cpu);
    ReluGrad(cpu.data(), dy.data(), x.data(), n);
    ExpectClose(
        OnDevice(x, dy,
                 [&](float* y, float* a, float* b) { return cuda::ReluGrad(y, b, a, n, nullptr); }),
        cpu);
    Gelu(cpu.data(), x.data(), n);
    ExpectClose(
        OnDevice(x, dy, [&](float* y, float* a, float*) { return cuda::Gelu(y, a, n, nullptr); }),
        cpu);
    GeluGrad(cpu.data(), dy.data(), x.data(), n);
    ExpectClose(
        OnDevice(x, dy,
                 [&](float* y, float* a, float* b) { return cuda::GeluGrad(y, b, a, n, nullptr); }),
        cpu);
  }
}

}  // namespace
}  // namespace muster::kernels
