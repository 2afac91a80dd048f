// Defines the order of samples. It is a pure function, so any worker can compute any share of any
// step.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace muster {

// A permutation of [0, n) keyed by (seed, epoch), evaluated per element without memory.
//   Source: Feistel network with cycle walking (Black & Rogaway, "Ciphers with arbitrary finite
//   domains", CT-RSA 2002), rounds from Philox (kernels/philox.h).
int64_t PermutedSample(uint64_t seed, int64_t epoch, int64_t n, int64_t i);

// A sample in one of its epochs.
struct SampleRef {
  int64_t epoch = 0;
  int64_t sample = 0;

  friend bool operator==(const SampleRef&, const SampleRef&) = default;
};

// Returns `samples` of one epoch.
std::vector<SampleRef> SamplesOf(int64_t epoch, absl::Span<const int64_t> samples);

// Returns the samples at positions [first_position, first_position + count) of step `step`'s batch.
// An epoch has floor(samples / batch_size) steps; the incomplete last batch is dropped. Requires:
// samples >= batch_size.
std::vector<SampleRef> SamplesOfStep(uint64_t seed, int64_t samples, int64_t batch_size,
                                     int64_t step, int64_t first_position, int64_t count);

}  // namespace muster
