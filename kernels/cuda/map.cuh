// Elementwise functions of one or two tensors, in vectors of 16 bytes. Requires: n > 0.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {

template <typename T, typename F>
__global__ void Map1(T* y, const T* x, int64_t n, F f) {
  constexpr int V = kVector<T>;
  for (int64_t i = ThreadIndex() * V; i < n; i += ThreadCount() * V) {
    if (i + V <= n) {
      float values[V];
      LoadFloats(values, x + i);
#pragma unroll
      for (float& value : values) value = f(value);
      StoreFloats(y + i, values);
    } else {
      for (int64_t j = i; j < n; ++j) y[j] = FromFloat<T>(f(ToFloat(x[j])));
    }
  }
}

template <typename T, typename F>
__global__ void Map2(T* dx, const T* dy, const T* known, int64_t n, F f) {
  constexpr int V = kVector<T>;
  for (int64_t i = ThreadIndex() * V; i < n; i += ThreadCount() * V) {
    if (i + V <= n) {
      float values[V], others[V];
      LoadFloats(values, dy + i);
      LoadFloats(others, known + i);
#pragma unroll
      for (int j = 0; j < V; ++j) values[j] = f(values[j], others[j]);
      StoreFloats(dx + i, values);
    } else {
      for (int64_t j = i; j < n; ++j) dx[j] = FromFloat<T>(f(ToFloat(dy[j]), ToFloat(known[j])));
    }
  }
}

template <typename F>
cudaError_t LaunchMap1(void* y, const void* x, int64_t n, Type type, cudaStream_t stream, F f) {
  return ForFloating(type, [&](auto one) {
    using T = decltype(one);
    return Launch(Map1<T, F>, Strided(CeilDiv(n, kVector<T>)), kThreads, 0, stream,
                  static_cast<T*>(y), static_cast<const T*>(x), n, f);
  });
}

template <typename F>
cudaError_t LaunchMap2(void* dx, const void* dy, const void* known, int64_t n, Type type,
                       cudaStream_t stream, F f) {
  return ForFloating(type, [&](auto one) {
    using T = decltype(one);
    return Launch(Map2<T, F>, Strided(CeilDiv(n, kVector<T>)), kThreads, 0, stream,
                  static_cast<T*>(dx), static_cast<const T*>(dy), static_cast<const T*>(known), n,
                  f);
  });
}

}  // namespace muster::kernels::cuda
