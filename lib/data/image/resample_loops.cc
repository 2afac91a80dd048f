#include "lib/data/image/resample_loops.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace muster::kernels::KERNELS_SIMD {
namespace {

constexpr int32_t kHalf = 1 << 21;

inline uint8_t Rounded(int32_t sum) {
  const int32_t value = (sum + kHalf) >> 22;
  return static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
}

void HorizontalPlane(uint8_t* to, const uint8_t* from, const ResampleTaps& taps, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t* const in = from + taps.starts[i];
    const int32_t* const weights = taps.weights + i * taps.stride;
    int32_t sum = 0;
    for (int32_t t = 0; t < taps.counts[i]; ++t) sum += in[t] * weights[t];
    to[i] = Rounded(sum);
  }
}

#if defined(__AVX2__)

// A weight has 23 bits, and the product of 16-bit numbers is the fastest one. So each weight is
// high * 2^11 + low, and two sums are made. The result is exact.

inline __m256i Load256(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

// Returns the sum of one output: two partial sums of red, green and blue, in the two halves.
inline __m256i RgbSum(const uint8_t* in, const int16_t* parts, int32_t groups) {
  // Makes pairs of 16 bits of inputs 0 and 1 in the low half, and of 2 and 3 in the high half.
  const __m256i order =
      _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, 6, -1, 9, -1, 7,
                       -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
  auto load = [&](int32_t group) {
    const auto* at = reinterpret_cast<const __m128i*>(in + 12 * group);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(at)), order);
  };
  __m256i pixels = load(0);
  __m256i high = _mm256_madd_epi16(pixels, Load256(parts));
  __m256i low = _mm256_madd_epi16(pixels, Load256(parts + 16));
  for (int32_t group = 1; group < groups; ++group) {
    pixels = load(group);
    const int16_t* const weights = parts + 32 * group;
    high = _mm256_add_epi32(high, _mm256_madd_epi16(pixels, Load256(weights)));
    low = _mm256_add_epi32(low, _mm256_madd_epi16(pixels, Load256(weights + 16)));
  }
  return _mm256_add_epi32(_mm256_slli_epi32(high, 11), low);
}

// Returns [sum of a's halves, sum of b's halves], rounded.
inline __m256i AddHalves(__m256i a, __m256i b) {
  const __m256i sum = _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                                       _mm256_permute2x128_si256(a, b, 0x31));
  return _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(kHalf)), 22);
}

void HorizontalRgb(uint8_t* to, int64_t plane, const uint8_t* from, const ResampleTaps& taps,
                   int64_t n) {
  const int64_t stride = (taps.stride + 3) / 4 * 32;
  const __m128i planar = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, -1, -1, -1, -1);
  auto sum = [&](int64_t i) {
    return RgbSum(from + 3 * int64_t{taps.starts[i]}, taps.parts + i * stride,
                  (taps.counts[i] + 3) / 4);
  };
  for (int64_t i = 0; i < n; i += 4) {
    const int64_t last = n - 1;
    auto at = [&](int64_t k) { return i + k < last ? i + k : last; };
    const __m256i first = AddHalves(sum(i), sum(at(1)));
    const __m256i second = AddHalves(sum(at(2)), sum(at(3)));
    const __m256i words = _mm256_packs_epi32(first, second);
    const __m256i bytes = _mm256_packus_epi16(words, words);
    const __m128i pixels = _mm_shuffle_epi8(
        _mm_unpacklo_epi8(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)),
        planar);
    const int32_t channels[3] = {_mm_cvtsi128_si32(pixels), _mm_extract_epi32(pixels, 1),
                                 _mm_extract_epi32(pixels, 2)};
    for (int c = 0; c < 3; ++c) __builtin_memcpy(to + c * plane + i, &channels[c], 4);
  }
}

void Vertical(uint8_t* to, const uint8_t* from, int64_t stride, const int32_t* weights,
              int32_t count, int64_t n) {
  const __m256i zero = _mm256_setzero_si256();
  for (int64_t i = 0; i < n; i += 32) {
    __m256i high[4] = {zero, zero, zero, zero};
    __m256i low[4] = {zero, zero, zero, zero};
    for (int32_t t = 0; t < count; t += 2) {
      const bool is_pair = t + 1 < count;
      const int32_t a = weights[t], b = is_pair ? weights[t + 1] : 0;
      const __m256i high_weights =
          _mm256_set1_epi32(static_cast<int32_t>((a >> 11 & 0xffff) | (b >> 11) * 65536));
      const __m256i low_weights = _mm256_set1_epi32((a & 2047) | (b & 2047) << 16);
      const __m256i row = Load256(from + t * stride + i);
      const __m256i next = is_pair ? Load256(from + (t + 1) * stride + i) : zero;
      const __m256i left = _mm256_unpacklo_epi8(row, next);
      const __m256i right = _mm256_unpackhi_epi8(row, next);
      const __m256i pairs[4] = {_mm256_unpacklo_epi8(left, zero), _mm256_unpackhi_epi8(left, zero),
                                _mm256_unpacklo_epi8(right, zero),
                                _mm256_unpackhi_epi8(right, zero)};
      for (int k = 0; k < 4; ++k) {
        high[k] = _mm256_add_epi32(high[k], _mm256_madd_epi16(pairs[k], high_weights));
        low[k] = _mm256_add_epi32(low[k], _mm256_madd_epi16(pairs[k], low_weights));
      }
    }
    __m256i sums[4];
    for (int k = 0; k < 4; ++k) {
      const __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high[k], 11), low[k]);
      sums[k] = _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(kHalf)), 22);
    }
    const __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]),
                                              _mm256_packs_epi32(sums[2], sums[3]));
    if (i + 32 <= n) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), bytes);
    } else {
      alignas(32) uint8_t rest[32];
      _mm256_store_si256(reinterpret_cast<__m256i*>(rest), bytes);
      __builtin_memcpy(to + i, rest, n - i);
    }
  }
}

#else

void HorizontalRgb(uint8_t* to, int64_t plane, const uint8_t* from, const ResampleTaps& taps,
                   int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t* const in = from + 3 * int64_t{taps.starts[i]};
    const int32_t* const weights = taps.weights + i * taps.stride;
    int32_t red = 0, green = 0, blue = 0;
    for (int32_t t = 0; t < taps.counts[i]; ++t) {
      red += in[3 * t] * weights[t];
      green += in[3 * t + 1] * weights[t];
      blue += in[3 * t + 2] * weights[t];
    }
    to[i] = Rounded(red);
    to[plane + i] = Rounded(green);
    to[2 * plane + i] = Rounded(blue);
  }
}

void Vertical(uint8_t* to, const uint8_t* from, int64_t stride, const int32_t* weights,
              int32_t count, int64_t n) {
  constexpr int64_t kColumns = 64;
  for (int64_t i = 0; i < n; i += kColumns) {
    const int64_t columns = n - i < kColumns ? n - i : kColumns;
    int32_t sums[kColumns] = {};
    for (int32_t t = 0; t < count; ++t) {
      const uint8_t* const row = from + t * stride + i;
      for (int64_t k = 0; k < columns; ++k) sums[k] += row[k] * weights[t];
    }
    for (int64_t k = 0; k < columns; ++k) to[i + k] = Rounded(sums[k]);
  }
}

#endif

}  // namespace

extern const ResampleLoops kResampleLoops;
const ResampleLoops kResampleLoops = {
    .horizontal_rgb = HorizontalRgb,
    .horizontal_plane = HorizontalPlane,
    .vertical = Vertical,
};

}  // namespace muster::kernels::KERNELS_SIMD
