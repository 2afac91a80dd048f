// Adds the gradients of a worker's logical workers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/engine/device.h"
#include "lib/plan/sum_tree.h"

namespace muster {

// A worker computes the leaves of its node one after the other. Each leaf's gradient replaces that
// of the leaf before in the gradient's memory, so it is added to the open sums of the tree first.
// After the last leaf the memory has the sum of the node.
//
// Threads may add different pieces at the same time.
class LeafSums {
 public:
  // The sums are of `elements` floats each; floor(log2 leaves) of them are open at most.
  // `gradients` has as many floats and outlives this object. It is cut into `pieces` pieces. Fails
  // as Device::Allocate() does. Requires: node.leaves > 1.
  static absl::StatusOr<std::unique_ptr<LeafSums>> Create(Device& device, SumNode node,
                                                          float* gradients, int64_t elements,
                                                          int pieces);

  // Adds the floats [begin, end) of the next leaf's gradient, which are `piece`. Returns whether it
  // was the last leaf. The next step begins again with the first leaf. Requires: the piece of the
  // leaf before was added.
  bool Add(int piece, int64_t begin, int64_t end);

 private:
  struct Leaf {
    int open = 0;  // sums, before the leaf is added
    int joins = 0;
  };

  LeafSums() = default;

  float* gradients_ = nullptr;
  std::vector<Leaf> leaves_;
  std::vector<Device::Memory> sums_;  // by the order in which they were opened
  std::vector<int> next_leaf_;        // by piece
};

}  // namespace muster
