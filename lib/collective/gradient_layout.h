// Places a model's gradients in one piece of memory, and groups them into buckets for reduction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace muster {

// Consecutive gradients that are reduced together: floats [begin, end) of the layout. The length is
// a multiple of 16 world_size, so that every rank's slice begins on a cache line. Floats that
// belong to no parameter are 0 on every rank.
struct GradientBucket {
  int64_t begin = 0;
  int64_t end = 0;
  std::vector<int> parameters;
};

// Describes where gradients are in memory. Each gradient is a part of its bucket, so reductions
// copy nothing.
struct GradientLayout {
  std::vector<int64_t> offsets;  // by parameter: floats from the start, a multiple of 16
  std::vector<int> bucket_of;    // by parameter
  std::vector<GradientBucket> buckets;
  int64_t elements = 0;  // floats of the whole, a multiple of 16
};

struct BucketSizes {
  // The first bucket is small, so that the first exchange begins early. The others are large, so
  // that the start-up cost of a reduction does not matter. The values are those of PyTorch's
  // DistributedDataParallel (Li et al., VLDB 2020, section 3.2.3).
  int64_t first_bytes = int64_t{1} << 20;
  int64_t bytes = int64_t{25} << 20;
};

// Returns the layout of the gradients. `elements`: number of floats of each parameter. `order`:
// every parameter once, in the order in which gradients become final. A bucket is closed before it
// would exceed its size; a parameter larger than that gets a bucket of its own.
GradientLayout LayOutGradients(absl::Span<const int64_t> elements, absl::Span<const int> order,
                               int world_size, const BucketSizes& sizes = {});

}  // namespace muster
