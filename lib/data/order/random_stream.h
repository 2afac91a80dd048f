// Separates the random numbers of one seed by purpose.
#pragma once

#include <cstdint>

#include "kernels/philox.h"

namespace muster {

enum class RandomStream : uint64_t {
  kSampleOrder = 1,
  kTextShift = 2,
  kLinearSamples = 3,
  kSyntheticSamples = 4,
  kAugmentation = 5,
  kBlockOrder = 16,
  kBlockWindow = 17,
  kMixtureSlots = 18,
  kMixturePart = 19,
  kSubstitute = 20,
};

// Returns the `stream` argument of kernels::RandomWords for `purpose` in `epoch` (< 2^56).
inline uint64_t StreamOf(RandomStream purpose, int64_t epoch) {
  return static_cast<uint64_t>(epoch) << 8 | static_cast<uint64_t>(purpose);
}

// Returns number `index` of a stream: 64 random bits.
inline uint64_t RandomNumber(uint64_t seed, uint64_t stream, uint64_t index) {
  const auto words = kernels::RandomWords(seed, stream, index);
  return uint64_t{words[0]} << 32 | words[1];
}

// Returns the seed of a part of a mixture.
inline uint64_t SeedOfPart(uint64_t seed, int part) {
  return RandomNumber(seed, StreamOf(RandomStream::kMixturePart, 0), part);
}

}  // namespace muster
