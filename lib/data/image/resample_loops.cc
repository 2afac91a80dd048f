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

// Returns inputs of two outputs, each in a half.
inline __m256i LoadTwo(const uint8_t* a, const uint8_t* b) {
  const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low),
                                 _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1);
}

// Returns the values of two outputs as 32-bit numbers: red, green, blue and nothing in each half.
// kPairs > 0 is the number of pairs; 0 means `pairs`.
template <int kPairs>
inline __m256i TwoOutputs(const uint8_t* a, const uint8_t* b, const int16_t* parts, int64_t pairs) {
  // These make pairs of 16 bits of inputs 0 and 1, or 2 and 3, for each channel.
  const __m256i first_order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
  const __m256i second_order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
  const int64_t count = kPairs > 0 ? kPairs : pairs;
  __m256i high = _mm256_setzero_si256(), low = _mm256_set1_epi32(kHalf);
  auto add = [&](__m256i pair, int64_t i) {
    high = _mm256_add_epi32(high, _mm256_madd_epi16(pair, Load256(parts + 32 * i)));
    low = _mm256_add_epi32(low, _mm256_madd_epi16(pair, Load256(parts + 32 * i + 16)));
  };
  int64_t i = 0;
  for (; i + 2 <= count; i += 2) {
    const __m256i pixels = LoadTwo(a + 6 * i, b + 6 * i);
    add(_mm256_shuffle_epi8(pixels, first_order), i);
    add(_mm256_shuffle_epi8(pixels, second_order), i + 1);
  }
  if (i < count) add(_mm256_shuffle_epi8(LoadTwo(a + 6 * i, b + 6 * i), first_order), i);
  return _mm256_srai_epi32(_mm256_add_epi32(_mm256_slli_epi32(high, 11), low), 22);
}

template <int kPairs>
inline void HorizontalBlocks(uint8_t* to, int64_t plane, const uint8_t* from, const RgbTaps& taps,
                             int64_t n) {
  const __m256i planar = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, -1, -1, -1, -1));
  const __m256i joined = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const int64_t part = 32 * (kPairs > 0 ? kPairs : taps.pairs);
  const int16_t* parts = taps.parts;
  for (int64_t i = 0; i < n; i += RgbTaps::kBlock, parts += 4 * part) {
    const int32_t* const starts = taps.starts + i;
    auto two = [&](int k) {
      return TwoOutputs<kPairs>(from + 3 * int64_t{starts[k]}, from + 3 * int64_t{starts[k + 4]},
                                parts + k * part, taps.pairs);
    };
    const __m256i left = _mm256_packs_epi32(two(0), two(1));
    const __m256i right = _mm256_packs_epi32(two(2), two(3));
    const __m256i bytes = _mm256_permutevar8x32_epi32(
        _mm256_shuffle_epi8(_mm256_packus_epi16(left, right), planar), joined);
    const __m128i red_green = _mm256_castsi256_si128(bytes);
    const __m128i blue = _mm256_extracti128_si256(bytes, 1);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to + i), red_green);
    _mm_storeh_pd(reinterpret_cast<double*>(to + plane + i), _mm_castsi128_pd(red_green));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 2 * plane + i), blue);
  }
}

void HorizontalRgb(uint8_t* to, int64_t plane, const uint8_t* from, const RgbTaps& taps,
                   int64_t n) {
  switch (taps.pairs) {
    case 1:
      return HorizontalBlocks<1>(to, plane, from, taps, n);
    case 2:
      return HorizontalBlocks<2>(to, plane, from, taps, n);
    case 3:
      return HorizontalBlocks<3>(to, plane, from, taps, n);
    default:
      return HorizontalBlocks<0>(to, plane, from, taps, n);
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

void HorizontalRgb(uint8_t* to, int64_t plane, const uint8_t* from, const RgbTaps& taps,
                   int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t block = i / RgbTaps::kBlock, k = i % 4, half = i % RgbTaps::kBlock / 4;
    const uint8_t* const in = from + 3 * int64_t{taps.starts[i]};
    const int16_t* const parts = taps.parts + 32 * taps.pairs * (4 * block + k) + 8 * half;
    int32_t red = 0, green = 0, blue = 0;
    for (int64_t t = 0; t < 2 * taps.pairs; ++t) {
      const int16_t* const part = parts + 32 * (t / 2) + t % 2;
      const int32_t weight = part[0] * 2048 + part[16];
      red += in[3 * t] * weight;
      green += in[3 * t + 1] * weight;
      blue += in[3 * t + 2] * weight;
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
