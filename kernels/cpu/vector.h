// Vectors of the widest registers of the level being compiled, by the compilers' vector extensions.
// Everything here has internal linkage: each level keeps its own copy (see bazel/simd.bzl).
#pragma once

#include <cstdint>

namespace muster::kernels::KERNELS_SIMD {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t IntVec __attribute__((vector_size(kLanes * sizeof(int32_t))));

inline Vec Splat(float x) { return x - Vec{}; }

inline Vec Load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

inline void Store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof(v)); }

// The first n < kLanes lanes; the others are `fill`.
inline Vec LoadFirst(const float* p, int64_t n, float fill = 0) {
  Vec v = Splat(fill);
  __builtin_memcpy(&v, p, n * sizeof(float));
  return v;
}

inline void StoreFirst(float* p, Vec v, int64_t n) { __builtin_memcpy(p, &v, n * sizeof(float)); }

inline Vec Max(Vec a, Vec b) { return a > b ? a : b; }

// In a fixed tree, so that a sum repeats to the bit.
inline float SumLanes(Vec v) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) v[i] += v[i + half];
  }
  return v[0];
}

inline float MaxLane(Vec v) {
  float max = v[0];
  for (int i = 1; i < kLanes; ++i) max = v[i] > max ? v[i] : max;
  return max;
}

// e^x within 2 ulp for x in [-87, 88]; beyond, the value at the end of that range. NaN stays NaN.
//   Source: Cody & Waite range reduction; polynomial of Cephes expf (S. Moshier).
inline Vec Exp(Vec x) {
  x = x < -87.0f ? Splat(-87.0f) : x;
  x = x > 88.0f ? Splat(88.0f) : x;
  // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits of the sum.
  const Vec shifted = x * 1.44269504088896341f + 12582912.0f;
  const Vec n = shifted - 12582912.0f;
  Vec r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Vec p = Splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const Vec e = p * (r * r) + r + 1.0f;
  // In unsigned arithmetic: NaN leaves arbitrary bits here, and NaN times anything is NaN.
  typedef uint32_t BitsVec __attribute__((vector_size(kLanes * sizeof(uint32_t))));
  const BitsVec bits = ((BitsVec)shifted - 0x4B400000u + 127u) << 23;
  return e * (Vec)bits;
}

}  // namespace
}  // namespace muster::kernels::KERNELS_SIMD
