#include "lib/collective/gradient_layout.h"

#include "glog/logging.h"

namespace muster {
namespace {

constexpr int64_t kFloatsPerLine = 16;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

GradientLayout LayOutGradients(absl::Span<const int64_t> elements, absl::Span<const int> order,
                               int world_size, const BucketSizes& sizes) {
  CHECK_EQ(elements.size(), order.size());
  GradientLayout layout{.offsets = std::vector<int64_t>(elements.size()),
                        .bucket_of = std::vector<int>(elements.size())};
  auto close = [&] {
    GradientBucket& bucket = layout.buckets.back();
    bucket.end = bucket.begin + RoundUp(bucket.end - bucket.begin, kFloatsPerLine * world_size);
    layout.elements = bucket.end;
  };
  for (const int p : order) {
    const int64_t padded = RoundUp(elements[p], kFloatsPerLine);
    const int64_t limit = layout.buckets.size() <= 1 ? sizes.first_bytes : sizes.bytes;
    const bool fits = !layout.buckets.empty() &&
                      (layout.buckets.back().end - layout.buckets.back().begin + padded) *
                              static_cast<int64_t>(sizeof(float)) <=
                          limit;
    if (!fits) {
      if (!layout.buckets.empty()) close();
      layout.buckets.push_back({.begin = layout.elements, .end = layout.elements});
    }
    GradientBucket& bucket = layout.buckets.back();
    layout.offsets[p] = bucket.end;
    layout.bucket_of[p] = static_cast<int>(layout.buckets.size()) - 1;
    bucket.parameters.push_back(p);
    bucket.end += padded;
  }
  if (!layout.buckets.empty()) close();
  return layout;
}

}  // namespace muster
