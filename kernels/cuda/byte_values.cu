#include "kernels/cuda/byte_values.h"
#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {
namespace {

// Elements of a plane that one block decodes, at least: then its table is a small part of what it
// reads.
constexpr int64_t kElementsOfBlock = 4096;

// Decodes the elements of a run with one table, blockIdx.x of gridDim.x blocks taking part. Decodes
// four elements at a time if the run is aligned, so that a warp loads 128 and stores 512 contiguous
// bytes.
__device__ void DecodeRun(float* y, const uint8_t* x, int64_t n, const float* values,
                          bool is_aligned) {
  constexpr int V = 4;
  // Lanes that read different words of one bank wait for each other, three or four of them for
  // random bytes. That is little compared with the memory traffic, and less than a table in global
  // memory would cost.
  __shared__ float table[256];
  __syncthreads();  // the block may still read the table of the run before
  for (int byte = static_cast<int>(threadIdx.x); byte < 256; byte += kThreads) {
    table[byte] = values[byte];
  }
  __syncthreads();
  if (!is_aligned) {
    for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) y[i] = table[x[i]];
    return;
  }
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

__global__ void DecodeAll(float* y, const uint8_t* x, int64_t n, const float* values) {
  DecodeRun(y, x, n, values, /*is_aligned=*/true);
}

// Blocks of one blockIdx.y decode the planes blockIdx.y, + gridDim.y, ...
__global__ void DecodePlanes(float* y, const uint8_t* x, int64_t planes, int64_t plane,
                             const float* tables, int64_t channels) {
  for (int64_t p = blockIdx.y; p < planes; p += gridDim.y) {
    DecodeRun(y + p * plane, x + p * plane, plane, tables + p % channels * 256, plane % 4 == 0);
  }
}

}  // namespace

cudaError_t DecodeBytes(float* y, const uint8_t* x, int64_t n, const float* tables,
                        int64_t channels, int64_t plane, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  if (channels == 1) {
    return Launch(DecodeAll, Strided(CeilDiv(n, 4)), kThreads, 0, stream, y, x, n, tables);
  }
  const int64_t planes = n / plane;
  const int64_t at_once = std::min(planes, kBlocksMax);
  const int64_t blocks =
      std::clamp<int64_t>(CeilDiv(plane, kElementsOfBlock), 1, CeilDiv(kBlocksMax, at_once));
  return Launch(DecodePlanes, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(at_once)),
                kThreads, 0, stream, y, x, planes, plane, tables, channels);
}

}  // namespace muster::kernels::cuda
