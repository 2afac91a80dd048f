#include "kernels/cuda/byte_values.h"
#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {
namespace {

// Decodes four elements at a time, so that a warp loads 128 and stores 512 contiguous bytes.
__global__ void DecodeAll(float* y, const uint8_t* x, int64_t n, const float* values) {
  constexpr int V = 4;
  // Lanes that read different words of one bank wait for each other, three or four of them for
  // random bytes. That is little compared with the memory traffic, and less than a table in global
  // memory would cost.
  __shared__ float table[256];
  for (int byte = static_cast<int>(threadIdx.x); byte < 256; byte += kThreads) {
    table[byte] = values[byte];
  }
  __syncthreads();
  for (int64_t i = ThreadIndex() * V; i < n; i += ThreadCount() * V) {
    if (i + V <= n) {
      const auto bytes = *reinterpret_cast<const Vector<uint8_t, V>*>(x + i);
      Vector<float, V> stored;
#pragma unroll
      for (int j = 0; j < V; ++j) stored.lanes[j] = table[bytes.lanes[j]];
      *reinterpret_cast<Vector<float, V>*>(y + i) = stored;
    } else {
      for (int64_t j = i; j < n; ++j) y[j] = table[x[j]];
    }
  }
}

}  // namespace

cudaError_t DecodeBytes(float* y, const uint8_t* x, int64_t n, const float* values,
                        cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  return Launch(DecodeAll, Strided(CeilDiv(n, 4)), kThreads, 0, stream, y, x, n, values);
}

}  // namespace muster::kernels::cuda
