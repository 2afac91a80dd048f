// Places a model's values in the memory of a GPU that gathers them from its peers by buckets.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "lib/collective/gradient_layout.h"

namespace muster {

// The values of a parameter on a device.
struct DeviceValues {
  int64_t elements = 0;
  int64_t width = 0;  // bytes of an element: 2 if the device computes in 16 bits
  int64_t bytes = 0;  // of its memory, at least elements * width; the rest is padding
};

// Elements [first, first + count) of a parameter.
struct ValueRange {
  int parameter = 0;
  int64_t first = 0;
  int64_t count = 0;

  bool operator==(const ValueRange&) const = default;
};

// Describes where values are in one piece of memory. The buckets have the parameters of the
// gradients' buckets, but values have the width in which the device computes, so they take less
// memory than gradients. Values that share a bucket are gathered together.
struct ValueLayout {
  struct Bucket {
    int64_t begin = 0;
    int64_t bytes = 0;  // a multiple of 256 world_size
    // The values in the slice of each rank. A slice is `bytes` / world_size bytes long.
    std::vector<std::vector<ValueRange>> slices;
  };

  std::vector<int64_t> offsets;  // by parameter: bytes from the start, a multiple of 256
  std::vector<Bucket> buckets;
  int64_t bytes = 0;  // of the whole
};

// Returns the layout of `values`, one for each parameter. All ranks must have the same values.
ValueLayout LayOutValues(const GradientLayout& gradients, absl::Span<const DeviceValues> values,
                         int world_size);

}  // namespace muster
