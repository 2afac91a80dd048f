// Shared by the kernels: launches, conversions, 16-byte vectors, sums over warps and blocks.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/cuda/out_of_range.h"
#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kThreads = 256;
inline constexpr unsigned kEveryLane = 0xffffffffu;
// Maximum number of blocks in a grid: it fills the largest devices. If there is more work, threads
// stride over it.
inline constexpr int64_t kBlocksMax = 132 * 32;

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, int64_t shared_bytes,
                   cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A grid of kThreads-wide blocks. Their threads stride over n items.
inline dim3 Strided(int64_t n) {
  return dim3(static_cast<unsigned>(std::clamp<int64_t>(CeilDiv(n, kThreads), 1, kBlocksMax)));
}

#define MUSTER_RETURN_IF_CUDA_ERROR(expression)                                                    \
  do {                                                                                             \
    if (const cudaError_t cuda_error = (expression); cuda_error != cudaSuccess) return cuda_error; \
  } while (false)

// Calls f with a value of the C++ type; decltype then selects the kernel.
template <typename F>
cudaError_t ForFloating(Type type, F f) {
  switch (type) {
    case Type::kF32:
      return f(float{});
    case Type::kBf16:
      return f(__nv_bfloat16{});
    case Type::kF16:
      return f(__half{});
    case Type::kI32:
      break;
  }
  return cudaErrorInvalidValue;
}

// Reports `id` as out of range. Several threads may report at once; each field then comes from one
// of them.
__device__ inline void Report(OutOfRange* out_of_range, int32_t id) {
  out_of_range->found = 1;
  out_of_range->id = id;
}

__device__ inline int64_t ThreadIndex() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline int64_t ThreadCount() { return int64_t{gridDim.x} * blockDim.x; }

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float ToFloat(__half x) { return __half2float(x); }
__device__ inline float ToFloat(int32_t x) { return static_cast<float>(x); }

template <typename T>
__device__ T FromFloat(float x);
template <>
__device__ inline float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half FromFloat<__half>(float x) {
  return __float2half_rn(x);
}

// N elements, loaded and stored at once. The address must be a multiple of their size.
template <typename T, int N>
struct alignas(sizeof(T) * N) Vector {
  T lanes[N];
};

template <typename T>
inline constexpr int kVector = 16 / sizeof(T);

template <int N, typename T>
__device__ Vector<T, N> Load(const T* from) {
  return *reinterpret_cast<const Vector<T, N>*>(from);
}

template <int N, typename T>
__device__ void ToFloats(float (&to)[N], const Vector<T, N>& from) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = ToFloat(from.lanes[i]);
}

template <int N, typename T>
__device__ void LoadFloats(float (&to)[N], const T* from) {
  ToFloats(to, Load<N>(from));
}

template <int N, typename T>
__device__ void StoreFloats(T* to, const float (&from)[N]) {
  Vector<T, N> stored;
#pragma unroll
  for (int i = 0; i < N; ++i) stored.lanes[i] = FromFloat<T>(from[i]);
  *reinterpret_cast<Vector<T, N>*>(to) = stored;
}

__device__ inline float WarpSum(float x) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(kEveryLane, x, lane);
  return x;
}

// Returns NaN if either is NaN.
__device__ inline float Max(float a, float b) { return a > b || isnan(a) ? a : b; }

__device__ inline float WarpMax(float x) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) {
    x = Max(x, __shfl_xor_sync(kEveryLane, x, lane));
  }
  return x;
}

// Returns the sum over a block of kThreads to every thread. The order of the sum is fixed.
__device__ inline float BlockSum(float x) {
  __shared__ float of_warps[kThreads / kWarp];
  x = WarpSum(x);
  __syncthreads();  // wait until the values of the previous call are read
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kThreads / kWarp; ++warp) sum += of_warps[warp];
  return sum;
}

}  // namespace muster::kernels::cuda
