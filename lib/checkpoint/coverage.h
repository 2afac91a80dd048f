// Tracks the written bytes of a set of ranges.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"

namespace muster {

// Not thread-safe. Costs eight bytes per range, and more only for partly written ranges.
class Coverage {
 public:
  explicit Coverage(std::vector<int64_t> range_bytes);

  // Records that bytes [begin, end) of a range are written, perhaps again. Requires: they are
  // inside the range.
  void Add(int64_t range, int64_t begin, int64_t end);

  int64_t incomplete() const { return incomplete_; }
  // Returns the first range with a missing byte. Requires: incomplete() > 0.
  int64_t FirstIncomplete() const;

 private:
  std::vector<int64_t> missing_bytes_;
  int64_t incomplete_ = 0;
  absl::flat_hash_map<int64_t, absl::btree_map<int64_t, int64_t>>
      partial_;  // range -> begin -> end of its disjoint written parts
};

}  // namespace muster
