// Vectors in the widest registers of the level being compiled, with the compiler's vector
// extensions. Everything here has internal linkage: each level keeps its own copy (see
// bazel/simd.bzl).
#pragma once

#include <immintrin.h>

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
typedef uint32_t BitsVec __attribute__((vector_size(kLanes * sizeof(uint32_t))));

inline Vec Splat(float x) { return x - Vec{}; }

inline Vec Load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

inline void Store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof(v)); }

#if defined(__AVX2__) && !defined(__AVX512F__)
inline __m256i FirstLanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
#endif

// Loads the first n < kLanes lanes; the others are `fill`.
inline Vec LoadFirst(const float* p, int64_t n, float fill = 0) {
#if defined(__AVX512F__)
  return _mm512_mask_loadu_ps(Splat(fill), static_cast<__mmask16>((1u << n) - 1), p);
#elif defined(__AVX2__)
  const __m256i mask = FirstLanes(n);
  return _mm256_blendv_ps(Splat(fill), _mm256_maskload_ps(p, mask), _mm256_castsi256_ps(mask));
#else
  Vec v = Splat(fill);
  for (int64_t i = 0; i < n; ++i) v[i] = p[i];
  return v;
#endif
}

inline void StoreFirst(float* p, Vec v, int64_t n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), v);
#elif defined(__AVX2__)
  _mm256_maskstore_ps(p, FirstLanes(n), v);
#else
  for (int64_t i = 0; i < n; ++i) p[i] = v[i];
#endif
}

// Computes y[i] = f(x[i]...) in whole vectors. The last, partial vector runs through the same code,
// so an element's value does not depend on its position.
template <typename F, typename... X>
inline void Map(F f, int64_t n, float* y, const X*... x) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(y + i, f(Load(x + i)...));
  if (i < n) StoreFirst(y + i, f(LoadFirst(x + i, n - i)...), n - i);
}

inline Vec Max(Vec a, Vec b) { return a > b ? a : b; }  // b where a is NaN
inline Vec Abs(Vec x) { return (Vec)((BitsVec)x & 0x7FFFFFFFu); }
inline Vec WithSign(Vec magnitude, Vec sign) {
  return (Vec)((BitsVec)magnitude | ((BitsVec)sign & 0x80000000u));
}

// Returns the square root, correctly rounded.
inline Vec SquareRoot(Vec x) {
#if defined(__AVX512F__)
  return _mm512_maskz_sqrt_ps(0xFFFF, x);  // gcc 12 warns about the form without a mask
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(x);
#else
  return _mm_sqrt_ps(x);
#endif
}

// Rounds to a whole number. kMode is _MM_FROUND_TO_NEG_INF, _MM_FROUND_TO_POS_INF or
// _MM_FROUND_TO_NEAREST_INT.
template <int kMode>
inline Vec Rounded(Vec x) {
#if defined(__AVX512F__)
  return _mm512_maskz_roundscale_ps(0xFFFF, x, kMode | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
  return _mm256_round_ps(x, kMode | _MM_FROUND_NO_EXC);
#else
  for (int i = 0; i < kLanes; ++i) {  // the instruction came with SSE4.1
    x[i] = kMode == _MM_FROUND_TO_NEG_INF   ? __builtin_floorf(x[i])
           : kMode == _MM_FROUND_TO_POS_INF ? __builtin_ceilf(x[i])
                                            : __builtin_rintf(x[i]);
  }
  return x;
#endif
}

// Adds the lanes in a fixed tree, so that a sum repeats to the bit.
inline float SumLanes(Vec v) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) v[i] += v[i + half];
  }
  return v[0];
}

// A float sum takes at most this many terms; sums of such blocks are added in double.
constexpr int64_t kSumBlock = 1024;

// Returns the sum of n elements. whole(i) returns the vector of elements that starts at i. part(i,
// m) returns the first m of them, followed by zeros.
template <typename Whole, typename Part>
inline double SumBlocks(int64_t n, Whole whole, Part part) {
  double total = 0;
  for (int64_t i = 0; i < n;) {
    const int64_t end = i + kSumBlock < n ? i + kSumBlock : n;
    Vec even{}, odd{};
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      even += whole(i);
      odd += whole(i + kLanes);
    }
    if (i + kLanes <= end) {
      even += whole(i);
      i += kLanes;
    }
    if (i < end) odd += part(i, end - i);
    i = end;
    total += SumLanes(even + odd);
  }
  return total;
}

// Returns the sum over i in [0, n) of f(x[i]...). Requires: f of zeros is zero.
template <typename F, typename... X>
inline double Reduce(F f, int64_t n, const X*... x) {
  return SumBlocks(
      n, [=](int64_t i) { return f(Load(x + i)...); },
      [=](int64_t i, int64_t m) { return f(LoadFirst(x + i, m)...); });
}

inline float MaxLane(Vec v) {
  float max = v[0];
  for (int i = 1; i < kLanes; ++i) max = v[i] > max ? v[i] : max;
  return max;
}

// Returns the largest element. If an element is NaN, the result is NaN or any element.
inline float Largest(const float* x, int64_t n) {
  Vec a = Splat(x[0]), b = a, c = a, d = a;
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    a = Max(Load(x + i), a);
    b = Max(Load(x + i + kLanes), b);
    c = Max(Load(x + i + 2 * kLanes), c);
    d = Max(Load(x + i + 3 * kLanes), d);
  }
  for (; i + kLanes <= n; i += kLanes) a = Max(Load(x + i), a);
  if (i < n) a = Max(LoadFirst(x + i, n - i, x[0]), a);
  return MaxLane(Max(Max(a, b), Max(c, d)));
}

// Returns e^x within 2 ulp: 0 if the result is below 2^-126, infinity if it is too large. NaN stays
// NaN.
//   Source: Cody & Waite range reduction; polynomial of Cephes expf (S. Moshier).
inline Vec Exp(Vec x) {
  const IntVec tiny = x < -87.3365447f;
  x = x > 89.0f ? Splat(89.0f) : x;
  x = tiny ? Splat(-87.0f) : x;
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
  // 2^128 is not a float, so the last factor of two is applied separately. The arithmetic is
  // unsigned, because NaN leaves arbitrary bits here; NaN times anything is NaN.
  const IntVec top = n > 127.0f;
  const BitsVec bits = ((BitsVec)shifted - 0x4B400000u + 127u + (BitsVec)top) << 23;
  const Vec y = e * (Vec)bits * (top ? Splat(2.0f) : Splat(1.0f));
  return tiny ? Vec{} : y;
}

// Returns log x within 2 ulp. log 0 is -inf; the log of a negative number is NaN.
//   x = m 2^e, m in [sqrt 1/2, sqrt 2); log(1 + r) = r - r²/2 + r³ p(r), p a Chebyshev interpolant.
inline Vec Log(Vec x) {
  const IntVec subnormal = x < 0x1p-126f;
  const Vec scaled = subnormal ? x * 0x1p24f : x;
  const BitsVec shifted = (BitsVec)scaled - 0x3F3504F3u;  // bits of sqrt 1/2
  const IntVec exponent = (IntVec)shifted >> 23;
  const Vec m = (Vec)((shifted & 0x007FFFFFu) + 0x3F3504F3u);
  const Vec e = __builtin_convertvector(exponent, Vec) - (subnormal ? Splat(24.0f) : Splat(0.0f));
  const Vec r = m - 1.0f;
  Vec p = Splat(6.971611083e-02f);
  p = p * r + -1.147973388e-01f;
  p = p * r + 1.168541983e-01f;
  p = p * r + -1.242568716e-01f;
  p = p * r + 1.424905807e-01f;
  p = p * r + -1.666780263e-01f;
  p = p * r + 2.000071555e-01f;
  p = p * r + -2.499999702e-01f;
  p = p * r + 3.333333135e-01f;
  // Adds e ln 2 in two parts, the larger of which is exact.
  Vec y = p * r * (r * r) + e * -2.12194440e-4f;
  y = y - 0.5f * (r * r) + r + e * 0.693359375f;
  y = x == __builtin_inff() ? x : y;
  y = x == 0.0f ? Splat(-__builtin_inff()) : y;
  return x >= 0.0f ? y : Splat(__builtin_nanf(""));
}

inline Vec Sigmoid(Vec x) { return 1.0f / (1.0f + Exp(-x)); }

// Returns tanh x within 3 ulp. Small arguments use a Chebyshev interpolant of (tanh(x) / x - 1) /
// x² in x².
inline Vec Tanh(Vec x) {
  const Vec s = x * x;
  Vec p = Splat(2.269501565e-03f);
  p = p * s + -8.323187009e-03f;
  p = p * s + 2.176250331e-02f;
  p = p * s + -5.395846069e-02f;
  p = p * s + 1.333329976e-01f;
  p = p * s + -3.333333433e-01f;
  const Vec small = x + x * s * p;
  const Vec large = WithSign(1.0f - 2.0f / (Exp(2.0f * Abs(x)) + 1.0f), x);
  return s < 0.4f ? small : x != x ? x : large;
}

// Returns erf of |x| <= 0.935, by a Chebyshev interpolant of erf(x) / x in x².
inline Vec SmallErf(Vec x) {
  const Vec s = x * x;
  Vec p = Splat(8.299430920e-05f);
  p = p * s + -8.126248722e-04f;
  p = p * s + 5.199613981e-03f;
  p = p * s + -2.685884386e-02f;
  p = p * s + 1.128368601e-01f;
  p = p * s + -3.761263192e-01f;
  return x * (p * s + 1.128379226e+00f);
}

// Returns 1 - erf(t) for t in [0.92, 10] as exp(-t²) q(1 / (1 + t/2)), with q a Chebyshev
// interpolant of exp(t²) erfc(t). Returns 0 beyond.
inline Vec LargeErfc(Vec t) {
  const Vec u = 1.0f / (1.0f + 0.5f * t);
  Vec q = Splat(6.773398817e-02f);
  q = q * u + -1.421443224e-01f;
  q = q * u + -3.451403230e-02f;
  q = q * u + 1.512843072e-01f;
  q = q * u + 1.365658641e-01f;
  q = q * u + 2.591875196e-01f;
  q = q * u + 2.799022496e-01f;
  q = q * u + 2.823045254e-01f;
  q = q * u + -8.391513802e-06f;
  return q * Exp(-(t * t));
}

inline Vec Erf(Vec x) {
  const Vec t = Abs(x);
  return t < 0.925f ? SmallErf(x) : x != x ? x : WithSign(1.0f - LargeErfc(t), x);
}

// Returns the standard normal distribution function, (1 + erf(x / sqrt 2)) / 2.
inline Vec NormalCdf(Vec x) {
  const Vec t = x * 0.70710678118654752f;
  const Vec tail = 0.5f * LargeErfc(Abs(t));
  const Vec large = x < 0.0f ? tail : 1.0f - tail;
  return Abs(t) < 0.925f ? 0.5f + 0.5f * SmallErf(t) : large;
}

}  // namespace
}  // namespace muster::kernels::KERNELS_SIMD
