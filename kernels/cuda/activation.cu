#include "kernels/cuda/activation.h"
#include "kernels/cuda/elementary.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/map.cuh"

namespace muster::kernels::cuda {
namespace {

constexpr float kRootTwoOverPi = 0.7978845608028654f;
constexpr float kCubic = 0.044715f;
constexpr float kRootHalf = 0.7071067811865476f;
constexpr float kTwoOverRootPi = 1.1283791670955126f;
constexpr float kOneOverRootTwoPi = 0.3989422804014327f;

struct ReluOf {
  // fmaxf would drop a NaN.
  __device__ float operator()(float x) const { return x < 0 ? 0 : x; }
};
struct SiluOf {
  __device__ float operator()(float x) const { return x / (1 + expf(-x)); }
};
struct TanhOf {
  __device__ float operator()(float x) const { return tanhf(x); }
};
struct SigmoidOf {
  __device__ float operator()(float x) const { return 1 / (1 + expf(-x)); }
};
struct ErfOf {
  __device__ float operator()(float x) const { return erff(x); }
};
struct ExpOf {
  __device__ float operator()(float x) const { return expf(x); }
};
struct LogOf {
  __device__ float operator()(float x) const { return logf(x); }
};
struct SqrtOf {
  __device__ float operator()(float x) const { return sqrtf(x); }
};
struct NegOf {
  __device__ float operator()(float x) const { return -x; }
};
struct GeluOf {
  __device__ float operator()(float x) const {
    const float u = kRootTwoOverPi * (x + kCubic * x * x * x);
    return x / (1 + expf(-2 * u));
  }
};
struct GeluExactOf {
  __device__ float operator()(float x) const { return 0.5f * x * (1 + erff(kRootHalf * x)); }
};

// The derivatives, from dy and `known`: y or x.
struct ReluGradOf {
  __device__ float operator()(float dy, float y) const { return y > 0 ? dy : 0; }
};
struct TanhGradOf {
  __device__ float operator()(float dy, float y) const { return dy * (1 - y * y); }
};
struct SigmoidGradOf {
  __device__ float operator()(float dy, float y) const { return dy * y * (1 - y); }
};
struct SqrtGradOf {
  __device__ float operator()(float dy, float y) const { return 0.5f * dy / y; }
};
struct ExpGradOf {
  __device__ float operator()(float dy, float y) const { return dy * y; }
};
struct SiluGradOf {
  __device__ float operator()(float dy, float x) const {
    const float s = 1 / (1 + expf(-x));
    return dy * s * (1 + x * (1 - s));
  }
};
struct ErfGradOf {
  __device__ float operator()(float dy, float x) const {
    return dy * kTwoOverRootPi * expf(-x * x);
  }
};
struct LogGradOf {
  __device__ float operator()(float dy, float x) const { return dy / x; }
};
struct GeluGradOf {
  __device__ float operator()(float dy, float x) const {
    const float t = tanhf(kRootTwoOverPi * (x + kCubic * x * x * x));
    const float slope = kRootTwoOverPi * (1 + 3 * kCubic * x * x);
    return dy * 0.5f * (1 + t + x * (1 - t * t) * slope);
  }
};
struct GeluExactGradOf {
  __device__ float operator()(float dy, float x) const {
    const float density = kOneOverRootTwoPi * expf(-0.5f * x * x);
    return dy * (0.5f * (1 + erff(kRootHalf * x)) + x * density);
  }
};

struct Terms {
  const void* of[kTermsMax];
  int count;
};

template <typename T>
__global__ void AccumulateTerms(T* y, Terms terms, int64_t n) {
  constexpr int V = kVector<T>;
  for (int64_t i = ThreadIndex() * V; i < n; i += ThreadCount() * V) {
    if (i + V <= n) {
      float sum[V];
      LoadFloats(sum, static_cast<const T*>(terms.of[0]) + i);
      // Index with constants, or the compiler copies the terms into local memory.
#pragma unroll
      for (int t = 1; t < kTermsMax; ++t) {
        if (t >= terms.count) break;
        float term[V];
        LoadFloats(term, static_cast<const T*>(terms.of[t]) + i);
#pragma unroll
        for (int j = 0; j < V; ++j) sum[j] += term[j];
      }
      StoreFloats(y + i, sum);
    } else {
      for (int64_t j = i; j < n; ++j) {
        float sum = ToFloat(static_cast<const T*>(terms.of[0])[j]);
#pragma unroll
        for (int t = 1; t < kTermsMax; ++t) {
          if (t >= terms.count) break;
          sum += ToFloat(static_cast<const T*>(terms.of[t])[j]);
        }
        y[j] = FromFloat<T>(sum);
      }
    }
  }
}

template <typename To, typename From>
__device__ To ConvertOne(From x) {
  return FromFloat<To>(ToFloat(x));
}
template <>
__device__ inline int32_t ConvertOne<int32_t, float>(float x) {
  return isnan(x) ? 0 : __float2int_rz(x);  // saturates
}
template <>
__device__ inline int32_t ConvertOne<int32_t, __nv_bfloat16>(__nv_bfloat16 x) {
  return ConvertOne<int32_t>(ToFloat(x));
}
template <>
__device__ inline int32_t ConvertOne<int32_t, __half>(__half x) {
  return ConvertOne<int32_t>(ToFloat(x));
}
template <>
__device__ inline float ConvertOne<float, int32_t>(int32_t x) {
  return static_cast<float>(x);
}
template <>
__device__ inline __nv_bfloat16 ConvertOne<__nv_bfloat16, int32_t>(int32_t x) {
  return FromFloat<__nv_bfloat16>(static_cast<float>(x));
}
template <>
__device__ inline __half ConvertOne<__half, int32_t>(int32_t x) {
  return FromFloat<__half>(static_cast<float>(x));
}

// Converts four elements at a time, so that each read and write has 8 or 16 bytes.
template <typename To, typename From>
__global__ void ConvertAll(To* y, const From* x, int64_t n) {
  constexpr int V = 4;
  for (int64_t i = ThreadIndex() * V; i < n; i += ThreadCount() * V) {
    if (i + V <= n) {
      const auto loaded = *reinterpret_cast<const Vector<From, V>*>(x + i);
      Vector<To, V> stored;
#pragma unroll
      for (int j = 0; j < V; ++j) stored.lanes[j] = ConvertOne<To>(loaded.lanes[j]);
      *reinterpret_cast<Vector<To, V>*>(y + i) = stored;
    } else {
      for (int64_t j = i; j < n; ++j) y[j] = ConvertOne<To>(x[j]);
    }
  }
}

template <typename To, typename From>
cudaError_t LaunchConvert(void* y, const void* x, int64_t n, cudaStream_t stream) {
  return Launch(ConvertAll<To, From>, Strided(CeilDiv(n, 4)), kThreads, 0, stream,
                static_cast<To*>(y), static_cast<const From*>(x), n);
}

template <typename T>
__global__ void ExportAll(float* to, const T* from, const RunNumbers* numbers, int64_t n) {
  if (numbers->gradients == Export::kNone) return;
  const bool adds = numbers->gradients == Export::kAdd;
  const float factor = 1 / numbers->loss_scale;
  constexpr int V = 4;
  for (int64_t i = ThreadIndex() * V; i < n; i += ThreadCount() * V) {
    if (i + V <= n) {
      float values[V], sum[V] = {};
      LoadFloats(values, from + i);
      if (adds) LoadFloats(sum, to + i);
#pragma unroll
      for (int j = 0; j < V; ++j) sum[j] += factor * values[j];
      StoreFloats(to + i, sum);
    } else {
      for (int64_t j = i; j < n; ++j) to[j] = (adds ? to[j] : 0) + factor * ToFloat(from[j]);
    }
  }
}

__device__ inline float ShareOf(const RunNumbers* numbers) {
  return static_cast<float>(static_cast<double>(numbers->samples) /
                            static_cast<double>(numbers->batch));
}

__global__ void Weigh(float* y, const float* x, const RunNumbers* numbers, int64_t n) {
  const float factor = ShareOf(numbers) * numbers->loss_scale;
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) y[i] = factor * x[i];
}

// Scales one number by the share of this run in the global batch. Runs in one thread.
__global__ void TakeShare(float* y, const float* x, const RunNumbers* numbers) {
  *y = *x * ShareOf(numbers);
}
__global__ void TakeShareGrad(float* dx, const RunNumbers* numbers) {
  *dx = ShareOf(numbers) * numbers->loss_scale;
}

template <typename T>
__global__ void FillAll(T* y, T value, int64_t n) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) y[i] = value;
}

__global__ void FillWithPositions(int32_t* y, int64_t n) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) y[i] = static_cast<int32_t>(i);
}

}  // namespace

cudaError_t Apply(const Curve& curve, void* y, const void* x, int64_t n, Type type,
                  cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  if (type == Type::kI32) return ApplyToIntegers(curve.function, y, x, n, stream);
  const auto map = [&](auto function) { return LaunchMap1(y, x, n, type, stream, function); };
  switch (curve.function) {
    case Function::kRelu:
      return map(ReluOf());
    case Function::kSilu:
      return map(SiluOf());
    case Function::kTanh:
      return map(TanhOf());
    case Function::kSigmoid:
      return map(SigmoidOf());
    case Function::kErf:
      return map(ErfOf());
    case Function::kExp:
      return map(ExpOf());
    case Function::kLog:
      return map(LogOf());
    case Function::kSqrt:
      return map(SqrtOf());
    case Function::kNeg:
      return map(NegOf());
    case Function::kGelu:
      return map(GeluOf());
    case Function::kGeluExact:
      return map(GeluExactOf());
    default:
      return ApplyElementary(curve, y, x, n, type, stream);
  }
}

cudaError_t ApplyGrad(const Curve& curve, void* dx, const void* dy, const void* known, int64_t n,
                      Type type, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  const auto map = [&](auto function) {
    return LaunchMap2(dx, dy, known, n, type, stream, function);
  };
  switch (curve.function) {
    case Function::kRelu:
      return map(ReluGradOf());
    case Function::kSilu:
      return map(SiluGradOf());
    case Function::kTanh:
      return map(TanhGradOf());
    case Function::kSigmoid:
      return map(SigmoidGradOf());
    case Function::kErf:
      return map(ErfGradOf());
    case Function::kExp:
      return map(ExpGradOf());
    case Function::kLog:
      return map(LogGradOf());
    case Function::kSqrt:
      return map(SqrtGradOf());
    case Function::kNeg:
      return Apply(Function::kNeg, dx, dy, n, type, stream);
    case Function::kGelu:
      return map(GeluGradOf());
    case Function::kGeluExact:
      return map(GeluExactGradOf());
    default:
      return ApplyElementaryGrad(curve, dx, dy, known, n, type, stream);
  }
}

cudaError_t Accumulate(void* y, const void* const* terms, int count, int64_t n, Type type,
                       cudaStream_t stream) {
  if (count < 1 || count > kTermsMax) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  Terms all = {.of = {}, .count = count};
  std::copy_n(terms, count, all.of);
  return ForFloating(type, [&](auto one) {
    using T = decltype(one);
    return Launch(AccumulateTerms<T>, Strided(CeilDiv(n, kVector<T>)), kThreads, 0, stream,
                  static_cast<T*>(y), all, n);
  });
}

cudaError_t Convert(void* y, Type to, const void* x, Type from, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  if (to == from) {
    if (y == x) return cudaSuccess;
    return cudaMemcpyAsync(y, x, static_cast<size_t>(n * Bytes(to)), cudaMemcpyDeviceToDevice,
                           stream);
  }
  if (to == Type::kI32) {
    return ForFloating(
        from, [&](auto x_one) { return LaunchConvert<int32_t, decltype(x_one)>(y, x, n, stream); });
  }
  return ForFloating(to, [&](auto y_one) {
    using To = decltype(y_one);
    if (from == Type::kI32) return LaunchConvert<To, int32_t>(y, x, n, stream);
    return ForFloating(
        from, [&](auto x_one) { return LaunchConvert<To, decltype(x_one)>(y, x, n, stream); });
  });
}

cudaError_t ExportGradient(float* to, const void* from, Type type, const RunNumbers* numbers,
                           int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  return ForFloating(type, [&](auto one) {
    using T = decltype(one);
    return Launch(ExportAll<T>, Strided(CeilDiv(n, 4)), kThreads, 0, stream, to,
                  static_cast<const T*>(from), numbers, n);
  });
}

cudaError_t WeighStatistic(float* y, const float* x, const RunNumbers* numbers, int64_t n,
                           cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  return Launch(Weigh, Strided(n), kThreads, 0, stream, y, x, numbers, n);
}

cudaError_t BatchShare(float* y, const float* x, const RunNumbers* numbers, cudaStream_t stream) {
  return Launch(TakeShare, dim3(1), dim3(1), 0, stream, y, x, numbers);
}

cudaError_t BatchShareGrad(float* dx, const RunNumbers* numbers, cudaStream_t stream) {
  return Launch(TakeShareGrad, dim3(1), dim3(1), 0, stream, dx, numbers);
}

cudaError_t Fill(void* y, double value, int64_t n, Type type, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  switch (type) {
    case Type::kF32:
      return Launch(FillAll<float>, Strided(n), kThreads, 0, stream, static_cast<float*>(y),
                    static_cast<float>(value), n);
    case Type::kBf16:
      return Launch(FillAll<__nv_bfloat16>, Strided(n), kThreads, 0, stream,
                    static_cast<__nv_bfloat16*>(y), __float2bfloat16(static_cast<float>(value)), n);
    case Type::kF16:
      return Launch(FillAll<__half>, Strided(n), kThreads, 0, stream, static_cast<__half*>(y),
                    __float2half(static_cast<float>(value)), n);
    case Type::kI32:
      return Launch(FillAll<int32_t>, Strided(n), kThreads, 0, stream, static_cast<int32_t*>(y),
                    static_cast<int32_t>(value), n);
  }
  return cudaErrorInvalidValue;
}

cudaError_t FillPositions(int32_t* y, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  return Launch(FillWithPositions, Strided(n), kThreads, 0, stream, y, n);
}

}  // namespace muster::kernels::cuda
