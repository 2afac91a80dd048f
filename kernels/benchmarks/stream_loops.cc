#include "kernels/benchmarks/stream_loops.h"

#include "kernels/cpu/vector.h"

namespace muster::kernels::KERNELS_SIMD {
namespace {

inline Vec Widen(const uint16_t* p) {
#if defined(__AVX512F__)
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return (Vec)((BitsVec)_mm512_maskz_cvtepu16_epi32(0xFFFF, halves) << 16);
#elif defined(__AVX2__)
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return (Vec)((BitsVec)_mm256_cvtepu16_epi32(halves) << 16);
#else
  return (Vec)(BitsVec{p[0], p[1], p[2], p[3]} << 16);
#endif
}

inline void StorePastCaches(float* p, Vec v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, v);
#elif defined(__AVX2__)
  _mm256_stream_ps(p, v);
#else
  _mm_stream_ps(p, v);
#endif
}

template <int kReads, int kWrites, bool kBf16, bool kStreaming>
__attribute__((noinline)) void Run(const StreamArrays& arrays, int64_t n) {
  const StreamArrays a = arrays;
  for (int64_t i = 0; i + kLanes <= n; i += kLanes) {
    Vec sum = kBf16 ? Widen(a.bf16_read + i) : Vec{};
    for (int r = 0; r < kReads; ++r) sum += Load(a.reads[r] + i);
    for (int w = 0; w < kWrites; ++w) {
      sum *= 0.5f;
      if (kStreaming) {
        StorePastCaches(a.writes[w] + i, sum);
      } else {
        Store(a.writes[w] + i, sum);
      }
    }
  }
  if (kStreaming) _mm_sfence();
}

template <int kReads, int kWrites>
void Choose(const StreamArrays& a, int64_t n) {
  if (a.bf16_read != nullptr) {
    return a.streaming_stores ? Run<kReads, kWrites, true, true>(a, n)
                              : Run<kReads, kWrites, true, false>(a, n);
  }
  return a.streaming_stores ? Run<kReads, kWrites, false, true>(a, n)
                            : Run<kReads, kWrites, false, false>(a, n);
}

}  // namespace

// Supports the numbers of arrays that optimizer_benchmark uses.
void Stream(const StreamArrays& a, int64_t n) {
  switch (10 * a.read_count + a.write_count) {
    case 11:
      return Choose<1, 1>(a, n);
    case 21:
      return Choose<2, 1>(a, n);
    case 31:
      return Choose<3, 1>(a, n);
    case 22:
      return Choose<2, 2>(a, n);
    case 32:
      return Choose<3, 2>(a, n);
    case 33:
      return Choose<3, 3>(a, n);
    case 43:
      return Choose<4, 3>(a, n);
    case 53:
      return Choose<5, 3>(a, n);
    case 91:
      return Choose<9, 1>(a, n);
  }
  __builtin_trap();
}

}  // namespace muster::kernels::KERNELS_SIMD
