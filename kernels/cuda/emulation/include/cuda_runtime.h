// Compiles the project's .cu files as ordinary C++: with this folder before the toolkit's, the host
// compiler builds them, and a launch runs at once on this thread. For tests of index arithmetic,
// masks and tails on machines without a GPU or without the toolkit.
//
// A thread of a block is a fiber (block.h); blocks run one after the other.
//
// Imitated:
// - the indices, and the limits of a launch.
// - __shared__ (zeros at first, then the values of the previous block) and launched shared memory
//   (NaNs).
// - __syncthreads, exchanges between the lanes of a warp, and atomics.
// - conversions of bf16 and f16.
//
// Checked: every thread of a block reaches a barrier, and every lane of a mask reaches an exchange;
// with sanitizers, bounds and alignment. Running a launch in both orders of threads finds most
// missing barriers.
//
// Not imitated:
// - blocks or warps that run at the same time, so a race between blocks stays unseen.
// - streams, memory order, caches, registers, speed.
//
// expf and similar functions are the host's, and a product is fused with a sum only in fmaf.
#pragma once

#include <math.h>

#include <algorithm>
#include <bit>
#include <type_traits>

#include "cuda_runtime_api.h"
#include "kernels/cuda/emulation/block.h"

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments... arguments) {
  return muster::kernels::cuda::emulation::RunGrid(
      config->gridDim, config->blockDim, config->dynamicSmemBytes, [&] { kernel(arguments...); });
}

struct float2 {
  float x, y;
};
struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <typename A, typename B>
std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return std::min<T>(a, b);
}
template <typename A, typename B>
std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return std::max<T>(a, b);
}

inline int __popc(unsigned x) { return std::popcount(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return uint64_t{a} * b >> 32; }
inline int __float2int_rz(float x) {
  if (x >= 0x1p31f) return INT32_MAX;
  return x <= -0x1p31f ? INT32_MIN : static_cast<int>(x);
}
template <typename T>
T __ldg(const T* from) {
  return *from;
}
template <typename T>
T atomicAdd(T* to, std::type_identity_t<T> term) {
  const T before = *to;
  *to = before + term;
  return before;
}

template <typename T>
T atomicMax(T* to, std::type_identity_t<T> other) {
  const T before = *to;
  *to = std::max(before, other);
  return before;
}

inline void __syncthreads() { muster::kernels::cuda::emulation::SyncBlock(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  muster::kernels::cuda::emulation::Exchange(mask, 0);
}

// Returns the value of lane `source`, which must be in the mask.
template <typename T>
T __shfl_sync(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  muster::kernels::cuda::emulation::Exchange(mask, bits);
  bits = muster::kernels::cuda::emulation::Received(mask, source % 32);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return __shfl_sync(mask, value, muster::kernels::cuda::emulation::Lane() ^ lanes);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, int lanes) {
  const int lane = muster::kernels::cuda::emulation::Lane();
  return __shfl_sync(mask, value, lane + lanes < 32 ? lane + lanes : lane);
}
inline int __any_sync(unsigned mask, bool value) {
  muster::kernels::cuda::emulation::Exchange(mask, value);
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) != 0 && muster::kernels::cuda::emulation::Received(mask, lane) != 0) {
      return 1;
    }
  }
  return 0;
}
inline unsigned __ballot_sync(unsigned mask, bool value) {
  muster::kernels::cuda::emulation::Exchange(mask, value);
  unsigned given = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) != 0 && muster::kernels::cuda::emulation::Received(mask, lane) != 0) {
      given |= 1u << lane;
    }
  }
  return given;
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value) {
  muster::kernels::cuda::emulation::Exchange(mask, static_cast<uint64_t>(value));
  unsigned alike = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    const uint64_t other = muster::kernels::cuda::emulation::Received(mask, lane);
    if (other == static_cast<uint64_t>(value)) alike |= 1u << lane;
  }
  return alike;
}
