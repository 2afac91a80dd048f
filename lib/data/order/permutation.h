// Permutations that are computed element by element, without memory.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace muster {

// Returns element `i` of a permutation of [0, n) that (seed, stream) selects. Pure. Requires: no
// other random numbers of this stream have an index below 2^35.
//   Source: Feistel network with cycle walking (Black & Rogaway, "Ciphers with arbitrary finite
//   domains", CT-RSA 2002), rounds from Philox (kernels/philox.h).
int64_t Permuted(uint64_t seed, uint64_t stream, int64_t n, int64_t i);

// Replaces each of `elements` by Permuted() of it. Faster if there are many.
void Permute(uint64_t seed, uint64_t stream, int64_t n, absl::Span<int64_t> elements);

}  // namespace muster
