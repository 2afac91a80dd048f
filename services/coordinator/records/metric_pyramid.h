// A series of any length in bounded memory: its smallest, largest and last values, bucket by
// bucket.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"

namespace muster {

// What became of one number over some steps. Values that are not finite are neither the smallest
// nor the largest, but they can be the last.
struct MetricRange {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double last = std::numeric_limits<double>::quiet_NaN();

  bool any_finite() const { return min <= max; }
  void Add(double value) {
    if (std::isfinite(value)) {
      min = std::min(min, value);
      max = std::max(max, value);
    }
    last = value;
  }
  void Append(const MetricRange& later) {
    min = std::min(min, later.min);
    max = std::max(max, later.max);
    last = later.last;
  }
};

// Rows of `columns` numbers each, by step. While there are at most kBucketsMax rows, each has a
// bucket of its own, and nothing is lost; whenever the buckets run out, each two neighbours become
// one. Pure; not thread-safe.
class MetricPyramid {
 public:
  static constexpr int64_t kBucketsMax = 16 << 10;

  struct Bucket {
    int64_t first_step = 0;
    int64_t last_step = 0;
    int64_t offset = 0;  // of its first row, in what the rows were read from
    int64_t rows = 0;
    // Of its first row and its last; NaN: not known.
    double first_time = std::numeric_limits<double>::quiet_NaN();
    double last_time = std::numeric_limits<double>::quiet_NaN();
  };

  explicit MetricPyramid(int columns) : columns_(columns) {}

  // Rows come in the order of their steps. One of a step that is not above the last one's is passed
  // over: it says nothing new. `time` may be anything, and NaN where it is not known.
  void Add(int64_t step, int64_t offset, absl::Span<const double> values,
           double time = std::numeric_limits<double>::quiet_NaN());

  absl::Span<const Bucket> buckets() const { return buckets_; }
  const MetricRange& Range(int64_t bucket, int column) const {
    return ranges_[bucket * columns_ + column];
  }
  // Of the buckets that have rows in [from, to]: the first, and the one after the last.
  struct Slice {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t size() const { return end - begin; }
  };
  Slice Find(int64_t from, int64_t to) const;

  int64_t rows_per_bucket() const { return rows_per_bucket_; }
  int columns() const { return columns_; }
  int64_t memory_bytes() const;

 private:
  void MergeNeighbours();

  int columns_;
  int64_t rows_per_bucket_ = 1;
  std::vector<Bucket> buckets_;
  std::vector<MetricRange> ranges_;  // of each bucket its columns
};

}  // namespace muster
