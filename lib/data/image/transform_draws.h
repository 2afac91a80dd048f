// The random numbers of image transforms.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/philox.h"
#include "lib/data/order/random_stream.h"
#include "lib/data/order/sample_order.h"

namespace muster {

// Draw i of a transform is a pure function of (seed, epoch, sample, number of the transform, i), so
// that no transform moves the draws of another one.
class TransformDraws {
 public:
  // Requires: transform < 256, fewer than 1,024 draws, sample.sample < 2^48.
  TransformDraws(uint64_t seed, SampleRef sample, int transform)
      : seed_(seed),
        stream_(StreamOf(RandomStream::kAugmentation, sample.epoch)),
        first_(static_cast<uint64_t>(sample.sample) << 16 | static_cast<uint64_t>(transform) << 8) {
  }

  // Returns a uniform number in [low, high).
  double Uniform(double low, double high) { return low + (high - low) * (Word() * 0x1p-32); }

  // Returns a uniform number of [0, count).
  int Below(int64_t count) {
    return static_cast<int>(static_cast<uint64_t>(Word()) * static_cast<uint64_t>(count) >> 32);
  }

 private:
  uint32_t Word() {
    const uint64_t i = next_++;
    if (i % 4 == 0) words_ = kernels::RandomWords(seed_, stream_, first_ + i / 4);
    return words_[i % 4];
  }

  const uint64_t seed_;
  const uint64_t stream_;
  const uint64_t first_;
  uint64_t next_ = 0;
  std::array<uint32_t, 4> words_ = {};
};

}  // namespace muster
