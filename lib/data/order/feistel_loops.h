// The inner loop of Permute(), compiled once per instruction set (bazel/simd.bzl).
#pragma once

#include <cstdint>

namespace muster::kernels {

struct FeistelKey {
  uint64_t seed;
  uint64_t stream;
  uint64_t mask;  // of one half of a value: at most 32 bits
  uint64_t rounds;
};

struct FeistelLoops {
  // Applies the rounds to `n` values. Round k replaces (left, right) by
  // (right, left ^ f(k, right)), where f is the first of
  // RandomWords(seed, stream, k << 32 | right), masked (kernels/philox.h).
  void (*apply)(uint64_t* left, uint64_t* right, int64_t n, const FeistelKey& key);
};

}  // namespace muster::kernels
