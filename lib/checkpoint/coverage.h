// Which bytes of a set of ranges have been written.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"

namespace muster {

// Not thread-safe. Costs eight bytes a range, and more only for those that are partly written.
class Coverage {
 public:
  explicit Coverage(std::vector<int64_t> range_bytes);

  // Bytes [begin, end) of a range are written, perhaps again. They lie inside it.
  void Add(int64_t range, int64_t begin, int64_t end);

  int64_t incomplete() const { return incomplete_; }
  // The first range with a byte missing; incomplete() > 0.
  int64_t FirstIncomplete() const;

 private:
  std::vector<int64_t> missing_bytes_;
  int64_t incomplete_ = 0;
  absl::flat_hash_map<int64_t, absl::btree_map<int64_t, int64_t>>
      partial_;  // range -> begin -> end, apart
};

}  // namespace muster
