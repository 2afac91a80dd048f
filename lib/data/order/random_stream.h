// Separates the random numbers of one seed by purpose.
#pragma once

#include <cstdint>

namespace muster {

enum class RandomStream : uint64_t {
  kSampleOrder = 1,
  kTextShift = 2,
  kLinearSamples = 3,
  kSyntheticSamples = 4,
  kBlockOrder = 16,
  kBlockWindow = 17,
};

// Returns the `stream` argument of kernels::RandomWords for `purpose` in `epoch` (< 2^56).
inline uint64_t StreamOf(RandomStream purpose, int64_t epoch) {
  return static_cast<uint64_t>(epoch) << 8 | static_cast<uint64_t>(purpose);
}

}  // namespace muster
