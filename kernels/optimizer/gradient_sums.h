// Sums of gradients in blocks that stay in the first-level cache, and sums of squares. Everything
// here has internal linkage: each level keeps its own copy (see bazel/simd.bzl).
#pragma once

#include <cstdint>

#include "kernels/cpu/conversion_loops.h"
#include "kernels/cpu/vector.h"
#include "kernels/optimizer/optimizer.h"

namespace muster::kernels::KERNELS_SIMD {
namespace {

constexpr int kGroup = 32;  // one element for each lane of a sum of squares
// Number of elements in a block. Its intermediate results, 8 KiB each, stay in the first-level
// cache.
constexpr int kBlock = 2048;
// Number of elements that are added along a tree at once. Several sums of them are open at a time
// and share the first-level cache with the gradients. With whole blocks, eight gradients in the
// second-level cache took a quarter more time.
constexpr int kTreeBlock = 1024;
static_assert(kGroup % kLanes == 0 && kBlock % kGroup == 0 && kTreeBlock % kGroup == 0);

// ---------------------------------------------------------------- sums of squares

#if defined(__AVX512F__)
typedef __m512d DoubleVec;
inline DoubleVec LowHalf(Vec x) {
  return _mm512_maskz_cvtps_pd(0xFF, __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7));
}
inline DoubleVec HighHalf(Vec x) {
  return _mm512_maskz_cvtps_pd(0xFF, __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
}
#elif defined(__AVX2__)
typedef __m256d DoubleVec;
inline DoubleVec LowHalf(Vec x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
inline DoubleVec HighHalf(Vec x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }
#else
typedef __m128d DoubleVec;
inline DoubleVec LowHalf(Vec x) { return _mm_cvtps_pd(x); }
inline DoubleVec HighHalf(Vec x) { return _mm_cvtps_pd(_mm_movehl_ps(x, x)); }
#endif

// Adds x² to sum, for floats in double. The product is exact, so a fused addition and a separate
// one round alike.
inline DoubleVec AddSquare(DoubleVec sum, DoubleVec x) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(x, x, sum);
#elif defined(__AVX2__)
  return _mm256_fmadd_pd(x, x, sum);
#else
  return sum + x * x;
#endif
}

// A sum of squares. Element i of a run is added to lane i mod kGroup. There are enough lanes that
// an addition need not wait for the previous one. With 16 lanes the additions took as long as all
// other work of sgd on data in the second-level cache.
struct Squares {
  DoubleVec sums[2 * kGroup / kLanes] = {};

  // Adds the squares of x, which is elements [part, part + kLanes) of a group.
  void Add(int part, Vec x) {
    DoubleVec* const to = sums + 2 * part / kLanes;
    to[0] = AddSquare(to[0], LowHalf(x));
    to[1] = AddSquare(to[1], HighHalf(x));
  }

  double Total() const {
    double lanes[kGroup];
    __builtin_memcpy(lanes, sums, sizeof(lanes));
    for (int half = kGroup / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
  }
};

// ---------------------------------------------------------------- loads and sums of gradients

inline Vec WidenBf16(const uint16_t* p) {
#if defined(__AVX512F__)
  // One instruction; widening and shifting would be two.
  typedef uint16_t Indices __attribute__((vector_size(64)));
  constexpr Indices kUpper = {0, 0, 0, 1, 0, 2,  0, 3,  0, 4,  0, 5,  0, 6,  0, 7,
                              0, 8, 0, 9, 0, 10, 0, 11, 0, 12, 0, 13, 0, 14, 0, 15};
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return (Vec)_mm512_maskz_permutexvar_epi16(0xAAAAAAAA, (__m512i)kUpper,
                                             _mm512_castsi256_si512(halves));
#elif defined(__AVX2__)
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return (Vec)((BitsVec)_mm256_cvtepu16_epi32(halves) << 16);
#else
  return (Vec)(BitsVec{p[0], p[1], p[2], p[3]} << 16);
#endif
}

template <FloatType kType>
inline Vec LoadAs(const void* elements, int64_t i) {
  if constexpr (kType == FloatType::kF32) {
    return Load(static_cast<const float*>(elements) + i);
  } else if constexpr (kType == FloatType::kBf16) {
    return WidenBf16(static_cast<const uint16_t*>(elements) + i);
  } else {
    const uint16_t* from = static_cast<const uint16_t*>(elements) + i;
#if defined(__AVX512F__)
    return _mm512_maskz_cvtph_ps(0xFFFF,
                                 _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__AVX2__)
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
    float widened[kLanes];
    kConversionLoops.f16_to_f32(widened, from, kLanes);
    return Load(widened);
#endif
  }
}

constexpr int BytesOf(FloatType type) { return type == FloatType::kF32 ? 4 : 2; }

const void* At(const Gradient& gradient, int64_t i) {
  return static_cast<const char*>(gradient.elements) + i * BytesOf(gradient.type);
}

// A null array stays null.
template <typename T>
T* At(T* array, int64_t i) {
  return array == nullptr ? nullptr : array + i;
}

// Calls f(part) for each vector of a group. Unrolled, because `part` selects a register of Squares.
template <typename F>
inline void ForGroup(F f) {
#pragma GCC unroll 8
  for (int part = 0; part < kGroup; part += kLanes) f(part);
}

// The last, partial group of an array, padded with zeros, so that it runs through the same code.
struct Tail {
  alignas(64) char bytes[kGroup * sizeof(float)] = {};

  Tail() = default;
  Tail(const void* from, int64_t size) {
    if (from != nullptr) __builtin_memcpy(bytes, from, size);
  }
  void CopyTo(float* to, int64_t n) const {
    if (to != nullptr) __builtin_memcpy(to, bytes, n * sizeof(float));
  }
  float* floats() { return reinterpret_cast<float*>(bytes); }
};

// Computes sum = prior + gradient, or the gradient alone. With kLast it also adds up the squares of
// the sum. `sum` has room for whole groups and may be `prior`.
template <FloatType kType, bool kPrior, bool kLast>
__attribute__((noinline)) void Accumulate(float* sum, const float* prior, const void* gradient,
                                          int n, Squares& squares) {
  Squares local = squares;
  auto group = [&](float* to, const float* others, const void* from, int i) {
    ForGroup([&](int part) {
      Vec x = LoadAs<kType>(from, i + part);
      if constexpr (kPrior) x = Load(others + i + part) + x;
      Store(to + i + part, x);
      if constexpr (kLast) local.Add(part, x);
    });
  };
  int i = 0;
  for (; i + kGroup <= n; i += kGroup) group(sum, prior, gradient, i);
  if (i < n) {
    Tail others(At(prior, i), (n - i) * sizeof(float));
    const Tail from(static_cast<const char*>(gradient) + i * BytesOf(kType),
                    (n - i) * BytesOf(kType));
    group(sum + i, others.floats(), from.bytes, 0);
  }
  squares = local;
}

template <bool kPrior, bool kLast>
void Accumulate(float* sum, const float* prior, const Gradient& gradient, int64_t i, int n,
                Squares& squares) {
  const void* from = At(gradient, i);
  switch (gradient.type) {
    case FloatType::kF32:
      return Accumulate<FloatType::kF32, kPrior, kLast>(sum, prior, from, n, squares);
    case FloatType::kBf16:
      return Accumulate<FloatType::kBf16, kPrior, kLast>(sum, prior, from, n, squares);
    case FloatType::kF16:
      return Accumulate<FloatType::kF16, kPrior, kLast>(sum, prior, from, n, squares);
  }
}

// Returns the sum of elements [i, i + n), n <= kBlock, of all ranks except the last. It is in
// `block`, or in the gradient itself if there is only one.
const float* SumOfOthers(float* block, const Gradient* gradients, int ranks, int64_t i, int64_t n) {
  Squares unused;
  const float* sum = block;
  if (gradients[0].type == FloatType::kF32) {
    sum = static_cast<const float*>(gradients[0].elements) + i;
  } else {
    Accumulate<false, false>(block, nullptr, gradients[0], i, n, unused);
  }
  for (int rank = 1; rank < ranks; ++rank) {
    Accumulate<true, false>(block, sum, gradients[rank], i, n, unused);
    sum = block;
  }
  return sum;
}

// The sums of kTreeBlock elements while gradients are added along a tree. A sum is in the block of
// its place among the open sums, or in its gradient if it is of one gradient only.
class OpenSums {
 public:
  // Adds elements [i, i + n), n <= kTreeBlock, of all ranks, except for the last addition.
  OpenSums(const Gradient* gradients, const uint8_t* joins, int ranks, int64_t i, int n) {
    for (int rank = 0; rank < ranks; ++rank) {
      const Gradient& gradient = gradients[rank];
      sums_[count_++] = {At(gradient, i), gradient.type};
      const int additions = rank == ranks - 1 ? joins[rank] - 1 : joins[rank];
      for (int addition = 0; addition < additions; ++addition) Join(n);
    }
    Widen(0, n);
  }

  // The two terms of the last addition.
  const float* first() const { return static_cast<const float*>(sums_[0].elements); }
  const Gradient& last() const { return sums_[1]; }

 private:
  // Makes one sum of the last two.
  void Join(int n) {
    const Gradient last = sums_[--count_];
    const int to = count_ - 1;
    Widen(to, n);
    Accumulate<true, false>(blocks_[to], static_cast<const float*>(sums_[to].elements), last, 0, n,
                            unused_);
    sums_[to].elements = blocks_[to];
  }

  // Makes the sum at `place` one in f32.
  void Widen(int place, int n) {
    if (sums_[place].type == FloatType::kF32) return;
    Accumulate<false, false>(blocks_[place], nullptr, sums_[place], 0, n, unused_);
    sums_[place] = {blocks_[place]};
  }

  // The last open sum is never a first term, so it needs no block.
  alignas(64) float blocks_[kOpenSumsMax - 1][kTreeBlock];
  Gradient sums_[kOpenSumsMax];
  int count_ = 0;
  Squares unused_;
};

// Computes what SumBlock() computes, along a tree. It is not inlined, so that SumBlock() keeps its
// small frame.
__attribute__((noinline)) void SumBlockAlongTree(float* block, const Gradient* gradients,
                                                 const uint8_t* joins, int ranks, int64_t i, int n,
                                                 Squares& squares) {
  for (int at = 0; at < n; at += kTreeBlock) {
    const int count = n - at < kTreeBlock ? n - at : kTreeBlock;
    const OpenSums sums(gradients, joins, ranks, i + at, count);
    Accumulate<true, true>(block + at, sums.first(), sums.last(), 0, count, squares);
  }
}

// Computes the sum of all ranks' elements [i, i + n), n <= kBlock, and its squares.
void SumBlock(float* block, const Gradient* gradients, const uint8_t* joins, int ranks, int64_t i,
              int n, Squares& squares) {
  if (joins != nullptr) {
    return SumBlockAlongTree(block, gradients, joins, ranks, i, n, squares);
  }
  const int others = ranks - 1;
  if (others == 0) return Accumulate<false, true>(block, nullptr, gradients[0], i, n, squares);
  const float* const prior = SumOfOthers(block, gradients, others, i, n);
  Accumulate<true, true>(block, prior, gradients[others], i, n, squares);
}

}  // namespace
}  // namespace muster::kernels::KERNELS_SIMD
