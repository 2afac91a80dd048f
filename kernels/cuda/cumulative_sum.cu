#include <type_traits>

#include "kernels/cuda/cumulative_sum.h"
#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {
namespace {

// The type of sums of T. Integers use unsigned ones, which wrap.
template <typename T>
using Total = std::conditional_t<std::is_same_v<T, int32_t>, uint32_t, float>;

__device__ inline float ToTotal(float x) { return x; }
__device__ inline float ToTotal(__nv_bfloat16 x) { return ToFloat(x); }
__device__ inline float ToTotal(__half x) { return ToFloat(x); }
__device__ inline uint32_t ToTotal(int32_t x) { return static_cast<uint32_t>(x); }

template <typename T>
__device__ T FromTotal(Total<T> x) {
  if constexpr (std::is_same_v<T, int32_t>) {
    return static_cast<int32_t>(x);
  } else {
    return FromFloat<T>(x);
  }
}

// The offset at which line `line` along `size` begins.
__device__ int64_t StartOf(const CumulativeShape& s, int64_t line) {
  return line / s.inner * s.size * s.inner + line % s.inner;
}

__device__ int64_t PlaceOf(const CumulativeShape& s, int64_t k) {
  return (s.reverse ? s.size - 1 - k : k) * s.inner;
}

// Takes one thread per line, so that neighbouring threads read neighbouring elements.
template <typename T>
__global__ void SumColumns(T* y, const T* x, CumulativeShape s) {
  for (int64_t line = ThreadIndex(); line < s.outer * s.inner; line += ThreadCount()) {
    const int64_t start = StartOf(s, line);
    Total<T> total = 0;
    for (int64_t k = 0; k < s.size; ++k) {
      const int64_t at = start + PlaceOf(s, k);
      const Total<T> before = total;
      total += ToTotal(x[at]);
      y[at] = FromTotal<T>(s.exclusive ? before : total);
    }
  }
}

// Takes one warp per line. A warp reads as many elements at once as it has lanes.
template <typename T>
__global__ void SumRows(T* y, const T* x, CumulativeShape s) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  for (int64_t line = ThreadIndex() / kWarp; line < s.outer * s.inner;
       line += ThreadCount() / kWarp) {
    const int64_t start = StartOf(s, line);
    Total<T> total = 0;  // sum of all previous elements
    for (int64_t first = 0; first < s.size; first += kWarp) {
      const int64_t k = first + lane;
      const int64_t at = start + PlaceOf(s, k);
      Total<T> sum = k < s.size ? ToTotal(x[at]) : 0;
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) {
        const Total<T> others = __shfl_sync(kEveryLane, sum, max(lane - step, 0));
        if (lane >= step) sum += others;
      }
      const Total<T> before = __shfl_sync(kEveryLane, sum, max(lane - 1, 0));
      const Total<T> own = !s.exclusive ? sum : lane == 0 ? 0 : before;
      if (k < s.size) y[at] = FromTotal<T>(total + own);
      total += __shfl_sync(kEveryLane, sum, kWarp - 1);
    }
  }
}

template <typename T>
cudaError_t LaunchSum(void* y, const void* x, const CumulativeShape& shape, cudaStream_t stream) {
  const int64_t lines = shape.outer * shape.inner;
  auto* to = static_cast<T*>(y);
  const auto* from = static_cast<const T*>(x);
  if (shape.inner >= kWarp) {
    return Launch(SumColumns<T>, Strided(lines), kThreads, 0, stream, to, from, shape);
  }
  return Launch(SumRows<T>, Strided(lines * kWarp), kThreads, 0, stream, to, from, shape);
}

}  // namespace

cudaError_t CumulativeSum(void* y, const void* x, Type type, const CumulativeShape& shape,
                          cudaStream_t stream) {
  if (type == Type::kI32) return LaunchSum<int32_t>(y, x, shape, stream);
  return ForFloating(type, [&](auto one) { return LaunchSum<decltype(one)>(y, x, shape, stream); });
}

}  // namespace muster::kernels::cuda
