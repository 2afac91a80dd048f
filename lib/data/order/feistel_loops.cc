#include "lib/data/order/feistel_loops.h"

#include <immintrin.h>

namespace muster::kernels::KERNELS_SIMD {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 8;
#elif defined(__AVX2__)
constexpr int kLanes = 4;
#else
constexpr int kLanes = 2;
#endif

// Each lane has a 32-bit number in its low half. The high half is ignored.
typedef uint64_t Vector __attribute__((vector_size(kLanes * sizeof(uint64_t))));

// Vectors that advance together, so that one is multiplied while the others wait for a product.
constexpr int kVectors = 2;
constexpr int kGroup = kVectors * kLanes;

inline Vector Splat(uint64_t x) { return x + Vector{}; }

// Returns the 64-bit products of the low halves.
inline Vector MultiplyLow(Vector a, Vector b) {
#if defined(__AVX512F__)
  return (Vector)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Vector)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
  return (Vector)_mm_mul_epu32((__m128i)a, (__m128i)b);
#endif
}

// This repeats Philox() of kernels/philox.h, because sources for one instruction set must not
// include inline functions.
void ApplyToGroup(uint64_t* left, uint64_t* right, const FeistelKey& key) {
  Vector a[kVectors], b[kVectors];  // the halves
  __builtin_memcpy(a, left, sizeof(a));
  __builtin_memcpy(b, right, sizeof(b));
  for (uint64_t round = 0; round < key.rounds; ++round) {
    Vector c0[kVectors], c1[kVectors], c2[kVectors], c3[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      c0[i] = b[i], c1[i] = Splat(round);
      c2[i] = Splat(key.stream), c3[i] = Splat(key.stream >> 32);
    }
    auto k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
    for (int step = 0; step < 10; ++step) {
      for (int i = 0; i < kVectors; ++i) {
        const Vector product0 = MultiplyLow(c0[i], Splat(0xD2511F53));
        const Vector product1 = MultiplyLow(c2[i], Splat(0xCD9E8D57));
        c0[i] = (product1 >> 32) ^ c1[i] ^ Splat(k0);
        c1[i] = product1;
        c2[i] = (product0 >> 32) ^ c3[i] ^ Splat(k1);
        c3[i] = product0;
      }
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    for (int i = 0; i < kVectors; ++i) {
      const Vector next = a[i] ^ (c0[i] & Splat(key.mask));
      a[i] = b[i];
      b[i] = next;
    }
  }
  __builtin_memcpy(left, a, sizeof(a));
  __builtin_memcpy(right, b, sizeof(b));
}

void Apply(uint64_t* left, uint64_t* right, int64_t n, const FeistelKey& key) {
  int64_t done = 0;
  for (; n - done >= kGroup; done += kGroup) ApplyToGroup(left + done, right + done, key);
  if (done == n) return;
  uint64_t a[kGroup] = {}, b[kGroup] = {};
  const int64_t rest = n - done;
  for (int64_t i = 0; i < rest; ++i) a[i] = left[done + i], b[i] = right[done + i];
  ApplyToGroup(a, b, key);
  for (int64_t i = 0; i < rest; ++i) left[done + i] = a[i], right[done + i] = b[i];
}

}  // namespace

extern const FeistelLoops kFeistelLoops;
const FeistelLoops kFeistelLoops = {.apply = Apply};

}  // namespace muster::kernels::KERNELS_SIMD
