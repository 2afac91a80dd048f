// A series of any length in bounded memory: the smallest, largest and last value of each bucket.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"

namespace muster {

// Stands for a number that a row does not have: a NaN with bits of its own. Copies keep the bits.
inline constexpr double kAbsent = std::bit_cast<double>(0x7ff8'0000'0000'ab5eULL);
inline bool IsAbsent(double value) {
  return std::bit_cast<uint64_t>(value) == std::bit_cast<uint64_t>(kAbsent);
}

// Summarizes one number over some steps. Non-finite values count only as `last`, and absent ones
// not at all.
struct MetricRange {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double last = kAbsent;

  bool any_finite() const { return min <= max; }
  void Add(double value) {
    if (IsAbsent(value)) return;
    if (std::isfinite(value)) {
      min = std::min(min, value);
      max = std::max(max, value);
    }
    last = value;
  }
  void Append(const MetricRange& later) {
    min = std::min(min, later.min);
    max = std::max(max, later.max);
    if (!IsAbsent(later.last)) last = later.last;
  }
};

// Stores rows of `columns` numbers each, by step. Up to kBucketsMax rows have a bucket of their
// own. When the buckets are full, each pair of neighbors is merged into one. Pure. Not thread-safe.
class MetricPyramid {
 public:
  static constexpr int64_t kBucketsMax = 16 << 10;

  struct Bucket {
    int64_t first_step = 0;
    int64_t last_step = 0;
    int64_t offset = 0;  // offset of its first row in the source of the rows
    int64_t rows = 0;
    // Times of its first and last row; NaN if unknown.
    double first_time = std::numeric_limits<double>::quiet_NaN();
    double last_time = std::numeric_limits<double>::quiet_NaN();
  };

  explicit MetricPyramid(int columns) : columns_(columns) {}

  // Adds a row. Rows must come in the order of their steps; a row with a step that is not above the
  // last one is ignored. `time` may have any value; NaN means unknown.
  void Add(int64_t step, int64_t offset, absl::Span<const double> values,
           double time = std::numeric_limits<double>::quiet_NaN());

  absl::Span<const Bucket> buckets() const { return buckets_; }
  const MetricRange& Range(int64_t bucket, int column) const {
    return ranges_[bucket * columns_ + column];
  }
  // The buckets with rows in [from, to]: the first one, and the one after the last.
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
  std::vector<MetricRange> ranges_;  // by bucket, then by column
};

}  // namespace muster
