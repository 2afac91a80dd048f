#include <algorithm>

#include "kernels/cuda/activation.h"

namespace muster::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlocksMax = 4096;  // more than any device runs at once; the rest by striding

template <typename Function>
__global__ void ForEach(int64_t n, Function function) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) function(i);
}

template <typename Function>
cudaError_t Launch(int64_t n, cudaStream_t stream, Function function) {
  if (n == 0) return cudaSuccess;
  const int64_t blocks = std::min((n + kThreads - 1) / kThreads, kBlocksMax);
  ForEach<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(n, function);
  return cudaGetLastError();
}

constexpr float kRootTwoOverPi = 0.7978845608028654f;
constexpr float kCubic = 0.044715f;

}  // namespace

cudaError_t Relu(float* y, const float* x, int64_t n, cudaStream_t stream) {
  // Not fmaxf, which would swallow a NaN.
  return Launch(n, stream, [=] __device__(int64_t i) { y[i] = x[i] < 0 ? 0 : x[i]; });
}

cudaError_t ReluGrad(float* dx, const float* dy, const float* y, int64_t n, cudaStream_t stream) {
  return Launch(n, stream, [=] __device__(int64_t i) { dx[i] = y[i] > 0 ? dy[i] : 0; });
}

cudaError_t Gelu(float* y, const float* x, int64_t n, cudaStream_t stream) {
  return Launch(n, stream, [=] __device__(int64_t i) {
    const float u = kRootTwoOverPi * (x[i] + kCubic * x[i] * x[i] * x[i]);
    y[i] = x[i] / (1 + expf(-2 * u));
  });
}

cudaError_t GeluGrad(float* dx, const float* dy, const float* x, int64_t n, cudaStream_t stream) {
  return Launch(n, stream, [=] __device__(int64_t i) {
    const float v = x[i];
    const float t = tanhf(kRootTwoOverPi * (v + kCubic * v * v * v));
    const float slope = kRootTwoOverPi * (1 + 3 * kCubic * v * v);
    dx[i] = dy[i] * 0.5f * (1 + t + v * (1 - t * t) * slope);
  });
}

}  // namespace muster::kernels::cuda
