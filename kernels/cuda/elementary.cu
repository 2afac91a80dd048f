#include "kernels/cuda/elementary.cuh"
#include "kernels/cuda/map.cuh"

namespace muster::kernels::cuda {
namespace {

// Returns NaN for NaN.
__device__ float SignOf(float x) { return x > 0 ? 1 : x < 0 ? -1 : x; }

struct AbsOf {
  __device__ float operator()(float x) const { return fabsf(x); }
};
struct SinOf {
  __device__ float operator()(float x) const { return sinf(x); }
};
struct CosOf {
  __device__ float operator()(float x) const { return cosf(x); }
};
struct SoftplusOf {
  __device__ float operator()(float x) const { return (x > 0 ? x : 0) + log1pf(expf(-fabsf(x))); }
};
struct EluOf {
  float alpha;
  __device__ float operator()(float x) const { return x > 0 ? x : alpha * expm1f(x); }
};
struct LeakyReluOf {
  float slope;
  __device__ float operator()(float x) const { return x > 0 ? x : slope * x; }
};
struct ClipOf {
  float low, high;
  // fminf and fmaxf would drop a NaN.
  __device__ float operator()(float x) const {
    const float y = x < low ? low : x;
    return y > high ? high : y;
  }
};
struct HardSigmoidOf {
  float alpha, beta;
  __device__ float operator()(float x) const { return ClipOf{0, 1}(alpha * x + beta); }
};
struct FloorOf {
  __device__ float operator()(float x) const { return floorf(x); }
};
struct CeilOf {
  __device__ float operator()(float x) const { return ceilf(x); }
};
struct RoundOf {
  __device__ float operator()(float x) const { return rintf(x); }
};
struct StepOf {
  __device__ float operator()(float x) const { return SignOf(x); }
};

struct AbsGradOf {
  __device__ float operator()(float dy, float x) const { return dy * SignOf(x); }
};
struct SinGradOf {
  __device__ float operator()(float dy, float x) const { return dy * cosf(x); }
};
struct CosGradOf {
  __device__ float operator()(float dy, float x) const { return -dy * sinf(x); }
};
struct SoftplusGradOf {
  __device__ float operator()(float dy, float x) const { return dy / (1 + expf(-x)); }
};
struct EluGradOf {
  float alpha;
  __device__ float operator()(float dy, float x) const { return x > 0 ? dy : dy * alpha * expf(x); }
};
struct LeakyReluGradOf {
  float slope;
  __device__ float operator()(float dy, float x) const { return x > 0 ? dy : dy * slope; }
};
struct ClipGradOf {
  float low, high;
  __device__ float operator()(float dy, float x) const { return x >= low && x <= high ? dy : 0; }
};
struct HardSigmoidGradOf {
  float alpha, beta;
  __device__ float operator()(float dy, float x) const {
    const float y = alpha * x + beta;
    return y > 0 && y < 1 ? dy * alpha : 0;
  }
};

template <typename T>
__global__ void FindNans(int32_t* y, const T* x, int64_t n) {
  constexpr int V = 4;
  for (int64_t i = ThreadIndex() * V; i < n; i += ThreadCount() * V) {
    if (i + V <= n) {
      float values[V];
      LoadFloats(values, x + i);
      Vector<int32_t, V> found;
#pragma unroll
      for (int j = 0; j < V; ++j) found.lanes[j] = isnan(values[j]) ? 1 : 0;
      *reinterpret_cast<Vector<int32_t, V>*>(y + i) = found;
    } else {
      for (int64_t j = i; j < n; ++j) y[j] = isnan(ToFloat(x[j])) ? 1 : 0;
    }
  }
}

__global__ void FlipSigns(int32_t* y, const int32_t* x, int64_t n, bool only_negative) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    const int32_t own = x[i];
    // Unsigned arithmetic, because it wraps.
    const auto negative = static_cast<int32_t>(0u - static_cast<uint32_t>(own));
    y[i] = only_negative && own >= 0 ? own : negative;
  }
}

}  // namespace

cudaError_t ApplyToIntegers(Function f, void* y, const void* x, int64_t n, cudaStream_t stream) {
  if (f != Function::kNeg && f != Function::kAbs) return cudaErrorInvalidValue;
  return Launch(FlipSigns, Strided(n), kThreads, 0, stream, static_cast<int32_t*>(y),
                static_cast<const int32_t*>(x), n, f == Function::kAbs);
}

cudaError_t ApplyElementary(const Curve& f, void* y, const void* x, int64_t n, Type type,
                            cudaStream_t stream) {
  const auto map = [&](auto function) { return LaunchMap1(y, x, n, type, stream, function); };
  switch (f.function) {
    case Function::kAbs:
      return map(AbsOf());
    case Function::kSin:
      return map(SinOf());
    case Function::kCos:
      return map(CosOf());
    case Function::kSoftplus:
      return map(SoftplusOf());
    case Function::kElu:
      return map(EluOf{f.a});
    case Function::kLeakyRelu:
      return map(LeakyReluOf{f.a});
    case Function::kHardSigmoid:
      return map(HardSigmoidOf{f.a, f.b});
    case Function::kClip:
      return map(ClipOf{f.a, f.b});
    case Function::kFloor:
      return map(FloorOf());
    case Function::kCeil:
      return map(CeilOf());
    case Function::kRound:
      return map(RoundOf());
    case Function::kSign:
      return map(StepOf());
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t ApplyElementaryGrad(const Curve& f, void* dx, const void* dy, const void* x, int64_t n,
                                Type type, cudaStream_t stream) {
  const auto map = [&](auto function) { return LaunchMap2(dx, dy, x, n, type, stream, function); };
  switch (f.function) {
    case Function::kAbs:
      return map(AbsGradOf());
    case Function::kSin:
      return map(SinGradOf());
    case Function::kCos:
      return map(CosGradOf());
    case Function::kSoftplus:
      return map(SoftplusGradOf());
    case Function::kElu:
      return map(EluGradOf{f.a});
    case Function::kLeakyRelu:
      return map(LeakyReluGradOf{f.a});
    case Function::kHardSigmoid:
      return map(HardSigmoidGradOf{f.a, f.b});
    case Function::kClip:
      return map(ClipGradOf{f.a, f.b});
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t IsNan(int32_t* y, const void* x, int64_t n, Type type, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  return ForFloating(type, [&](auto one) {
    using T = decltype(one);
    return Launch(FindNans<T>, Strided(CeilDiv(n, 4)), kThreads, 0, stream, y,
                  static_cast<const T*>(x), n);
  });
}

}  // namespace muster::kernels::cuda
