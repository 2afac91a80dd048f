#include "lib/collective/value_layout.h"

#include <algorithm>

#include "glog/logging.h"

namespace muster {
namespace {

// The alignment of memory of its own on a GPU. Kernels and libraries choose algorithms by it.
constexpr int64_t kAlignment = 256;

int64_t AlignUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Returns the elements of `values` that begin in [begin, end), in bytes from its start. Both are
// multiples of the width.
ValueRange RangeIn(const DeviceValues& values, int parameter, int64_t begin, int64_t end) {
  const int64_t first = std::clamp<int64_t>(begin / values.width, 0, values.elements);
  const int64_t last = std::clamp<int64_t>(end / values.width, 0, values.elements);
  return {.parameter = parameter, .first = first, .count = last - first};
}

}  // namespace

ValueLayout LayOutValues(const GradientLayout& gradients, absl::Span<const DeviceValues> values,
                         int world_size) {
  CHECK_EQ(gradients.offsets.size(), values.size());
  ValueLayout layout{.offsets = std::vector<int64_t>(values.size())};
  for (const GradientBucket& from : gradients.buckets) {
    ValueLayout::Bucket& bucket = layout.buckets.emplace_back();
    bucket.begin = layout.bytes;
    for (const int p : from.parameters) {
      CHECK_GE(values[p].bytes, values[p].elements * values[p].width) << "parameter " << p;
      layout.offsets[p] = layout.bytes;
      layout.bytes += AlignUp(values[p].bytes, kAlignment);
    }
    bucket.bytes = AlignUp(layout.bytes - bucket.begin, kAlignment * world_size);
    layout.bytes = bucket.begin + bucket.bytes;
    const int64_t slice = bucket.bytes / world_size;
    for (int rank = 0; rank < world_size; ++rank) {
      std::vector<ValueRange>& ranges = bucket.slices.emplace_back();
      const int64_t begin = bucket.begin + rank * slice;
      for (const int p : from.parameters) {
        const ValueRange range =
            RangeIn(values[p], p, begin - layout.offsets[p], begin + slice - layout.offsets[p]);
        if (range.count > 0) ranges.push_back(range);
      }
    }
  }
  return layout;
}

}  // namespace muster
