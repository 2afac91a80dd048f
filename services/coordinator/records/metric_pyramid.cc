#include "services/coordinator/records/metric_pyramid.h"

#include <glog/logging.h>

namespace muster {

void MetricPyramid::Add(int64_t step, int64_t offset, absl::Span<const double> values,
                        double time) {
  CHECK_EQ(std::ssize(values), columns_);
  if (!buckets_.empty() && step <= buckets_.back().last_step) return;
  if (buckets_.empty() || buckets_.back().rows == rows_per_bucket_) {
    if (std::ssize(buckets_) == kBucketsMax) MergeNeighbours();
    buckets_.push_back(
        {.first_step = step, .last_step = step, .offset = offset, .first_time = time});
    ranges_.resize(ranges_.size() + columns_);
  }
  Bucket& bucket = buckets_.back();
  bucket.last_step = step;
  bucket.last_time = time;
  ++bucket.rows;
  MetricRange* ranges = &ranges_[ranges_.size() - columns_];
  for (int column = 0; column < columns_; ++column) ranges[column].Add(values[column]);
}

// Requires: all buckets are full, and their number is even.
void MetricPyramid::MergeNeighbours() {
  const int64_t merged = std::ssize(buckets_) / 2;
  for (int64_t i = 0; i < merged; ++i) {
    const Bucket& later = buckets_[2 * i + 1];
    buckets_[i] = buckets_[2 * i];
    buckets_[i].last_step = later.last_step;
    buckets_[i].last_time = later.last_time;
    buckets_[i].rows += later.rows;
    for (int column = 0; column < columns_; ++column) {
      MetricRange range = Range(2 * i, column);
      range.Append(Range(2 * i + 1, column));
      ranges_[i * columns_ + column] = range;
    }
  }
  buckets_.resize(merged);
  ranges_.resize(merged * columns_);
  rows_per_bucket_ *= 2;
}

MetricPyramid::Slice MetricPyramid::Find(int64_t from, int64_t to) const {
  const auto begin = std::partition_point(buckets_.begin(), buckets_.end(),
                                          [&](const Bucket& b) { return b.last_step < from; });
  const auto end = std::partition_point(begin, buckets_.end(),
                                        [&](const Bucket& b) { return b.first_step <= to; });
  return {begin - buckets_.begin(), end - buckets_.begin()};
}

int64_t MetricPyramid::memory_bytes() const {
  return static_cast<int64_t>(buckets_.capacity() * sizeof(Bucket) +
                              ranges_.capacity() * sizeof(MetricRange));
}

}  // namespace muster
