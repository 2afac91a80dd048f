#include "kernels/cpu/conversion_loops.h"

#include "kernels/cpu/vector.h"

// Plain loops that the compiler vectorises, except f16, which has its own instructions.
namespace muster::kernels::KERNELS_SIMD {
namespace {

inline uint32_t BitsOf(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline float FloatOf(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}

void F32ToBf16(uint16_t* __restrict y, const float* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = BitsOf(x[i]);
    const uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
    const uint32_t quiet = bits >> 16 | 0x0040u;
    y[i] = static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
  }
}

void Bf16ToF32(float* __restrict y, const uint16_t* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = FloatOf(uint32_t{x[i]} << 16);
}

// Returns the bits of x rounded to f16. If the result is subnormal, 0.5 is added, so that the float
// addition itself rounds at the last bit of f16.
inline uint16_t F16Of(float x) {
  const uint32_t sign = BitsOf(x) >> 16 & 0x8000u;
  const uint32_t magnitude = BitsOf(x) & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65520 and more
  if (magnitude < 0x38800000u) {  // subnormal: in units of 2^-24
    return static_cast<uint16_t>(sign | (BitsOf(FloatOf(magnitude) + 0.5f) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0x0FFFu + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

inline float F32Of(uint16_t x) {
  const uint32_t sign = uint32_t{x & 0x8000u} << 16;
  const uint32_t magnitude = x & 0x7FFFu;
  if (magnitude >= 0x7C00u) return FloatOf(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  // The product is exact, also for subnormals. 2^112 corrects the exponent, whose bias is 112
  // larger in f32 than in f16.
  return FloatOf(BitsOf(FloatOf(magnitude << 13) * 0x1p112f) | sign);
}

#if defined(__AVX512F__)
// Selects all lanes. Intrinsics without a mask leave values undefined, about which gcc 12 warns.
constexpr __mmask16 kAll = 0xFFFF;
#endif

void F32ToF16(uint16_t* __restrict y, const float* __restrict x, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16) {
    const __m256i halves =
        _mm512_maskz_cvtps_ph(kAll, _mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + i), halves);
  }
#elif defined(__AVX2__)
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i), halves);
  }
#endif
  for (; i < n; ++i) y[i] = F16Of(x[i]);
}

void F32ToFiniteF16(uint16_t* __restrict y, const float* __restrict x, int64_t n) {
  constexpr int64_t kBlock = 256;
  const Vec most = Splat(65504), infinity = Splat(__builtin_inff());
  alignas(64) float within[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t count = n - i < kBlock ? n - i : kBlock;
    Map(
        [=](Vec v) {
          const Vec magnitude = Abs(v);
          return ((magnitude > most) & (magnitude < infinity)) ? WithSign(most, v) : v;
        },
        count, within, x + i);
    F32ToF16(y + i, within, count);
  }
}

void F16ToF32(float* __restrict y, const uint16_t* __restrict x, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    _mm512_storeu_ps(y + i, _mm512_maskz_cvtph_ps(kAll, halves));
  }
#elif defined(__AVX2__)
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i));
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(halves));
  }
#endif
  for (; i < n; ++i) y[i] = F32Of(x[i]);
}

// Requires: y equals x or does not overlap it.
void F32ToI32(int32_t* y, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float v;  // `y` may be `x`
    __builtin_memcpy(&v, x + i, sizeof(v));
    v = v != v ? 0.0f : v;
    const bool large = v >= 0x1p31f, small = v < -0x1p31f;
    const int32_t whole = static_cast<int32_t>(large || small ? 0.0f : v);
    const int32_t result = large ? INT32_MAX : small ? INT32_MIN : whole;
    __builtin_memcpy(y + i, &result, sizeof(result));
  }
}

void I32ToF32(float* y, const int32_t* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    int32_t v;
    __builtin_memcpy(&v, x + i, sizeof(v));
    const float result = static_cast<float>(v);
    __builtin_memcpy(y + i, &result, sizeof(result));
  }
}

void Scale(float* to, const float* from, float factor, int64_t n) {
  Map([factor](Vec v) { return factor * v; }, n, to, from);
}

void AddScaled(float* to, const float* from, float factor, int64_t n) {
  Map([factor](Vec t, Vec v) { return t + factor * v; }, n, to, static_cast<const float*>(to),
      from);
}

}  // namespace

extern const ConversionLoops kConversionLoops;
const ConversionLoops kConversionLoops = {
    .f32_to_bf16 = F32ToBf16,
    .f32_to_f16 = F32ToF16,
    .f32_to_finite_f16 = F32ToFiniteF16,
    .f32_to_i32 = F32ToI32,
    .bf16_to_f32 = Bf16ToF32,
    .f16_to_f32 = F16ToF32,
    .i32_to_f32 = I32ToF32,
    .scale = Scale,
    .add_scaled = AddScaled,
};

}  // namespace muster::kernels::KERNELS_SIMD
