#include "kernels/cpu/dropout_loops.h"

#include "kernels/cpu/vector.h"

namespace muster::kernels::KERNELS_SIMD {
namespace {

// A WideVec holds a 32-bit number in the low half of each 64-bit lane. The high half is ignored.
constexpr int kBlocks = kLanes / 2;
typedef uint64_t WideVec __attribute__((vector_size(kBlocks * sizeof(uint64_t))));

inline WideVec SplatWide(uint64_t x) { return x + WideVec{}; }

// Returns the 64-bit products of the low halves.
inline WideVec MultiplyLow(WideVec a, WideVec b) {
#if defined(__AVX512F__)
  return (WideVec)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (WideVec)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
  return (WideVec)_mm_mul_epu32((__m128i)a, (__m128i)b);
#endif
}

// Computes 2 * kLanes words: kBlocks calls of Philox (kernels/philox.h) side by side, for the
// counters (index, stream), (index + 1, stream), ...
inline void RandomWords(BitsVec words[2], uint64_t seed, uint64_t stream, uint64_t index) {
  WideVec counters;
  for (int i = 0; i < kBlocks; ++i) counters[i] = index + i;
  WideVec c0 = counters, c1 = counters >> 32;
  WideVec c2 = SplatWide(stream), c3 = SplatWide(stream >> 32);
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const WideVec product0 = MultiplyLow(c0, SplatWide(0xD2511F53));
    const WideVec product1 = MultiplyLow(c2, SplatWide(0xCD9E8D57));
    c0 = (product1 >> 32) ^ c1 ^ SplatWide(key0);
    c1 = product1;
    c2 = (product0 >> 32) ^ c3 ^ SplatWide(key1);
    c3 = product0;
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  // Places words 0 and 1, and 2 and 3, of each block next to each other, then restores the order of
  // the blocks.
  const WideVec low = (c0 & 0xFFFFFFFFu) | c1 << 32;
  const WideVec high = (c2 & 0xFFFFFFFFu) | c3 << 32;
#if defined(__AVX512F__)
  words[0] = (BitsVec)__builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11);
  words[1] = (BitsVec)__builtin_shufflevector(low, high, 4, 12, 5, 13, 6, 14, 7, 15);
#elif defined(__AVX2__)
  words[0] = (BitsVec)__builtin_shufflevector(low, high, 0, 4, 1, 5);
  words[1] = (BitsVec)__builtin_shufflevector(low, high, 2, 6, 3, 7);
#else
  words[0] = (BitsVec)__builtin_shufflevector(low, high, 0, 2);
  words[1] = (BitsVec)__builtin_shufflevector(low, high, 1, 3);
#endif
}

void Dropout(float* y, const float* x, int64_t n, uint64_t seed, uint64_t stream,
             uint64_t first_index, uint32_t threshold, float factor) {
  auto keep = [=](Vec v, BitsVec words) {
    return (IntVec)(words >> 8) >= static_cast<int32_t>(threshold) ? v * factor : Vec{};
  };
  BitsVec words[2];
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    RandomWords(words, seed, stream, first_index + i / 4);
    Store(y + i, keep(Load(x + i), words[0]));
    Store(y + i + kLanes, keep(Load(x + i + kLanes), words[1]));
  }
  if (i < n) RandomWords(words, seed, stream, first_index + i / 4);
  for (int half = 0; i < n; ++half, i += kLanes) {
    const int64_t m = n - i < kLanes ? n - i : kLanes;
    if (m == kLanes) {
      Store(y + i, keep(Load(x + i), words[half]));
    } else {
      StoreFirst(y + i, keep(LoadFirst(x + i, m), words[half]), m);
    }
  }
}

}  // namespace

extern const DropoutLoops kDropoutLoops;
const DropoutLoops kDropoutLoops = {.dropout = Dropout};

}  // namespace muster::kernels::KERNELS_SIMD
