// The fixed binary tree along which a job with logical workers adds its gradients
// (resources.workers.logical), and the cut of that tree into one node for each worker.
//
// The leaves are the shares of the batch, in order. A node of n leaves has ceil(n / 2) of them on
// its left. A worker owns one node of a cut: it adds its leaves along the tree, and the ps adds the
// workers' sums along the rest of the tree. So the root has the same bits whatever the cut.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace muster {

// A node of the tree: leaves [first_leaf, first_leaf + leaves).
struct SumNode {
  int64_t first_leaf = 0;
  int64_t leaves = 0;  // >= 1

  friend bool operator==(const SumNode&, const SumNode&) = default;
};

// Cuts `node` into `parts` nodes, in the order of their leaves: splits the largest node, the last
// of equals, until there are enough. Requires: 1 <= parts <= node.leaves.
std::vector<SumNode> CutNode(SumNode node, int64_t parts);

// Returns the leaves of `node`, in order, as nodes of one leaf.
std::vector<SumNode> LeavesOf(SumNode node);

// Returns how the sums of `pieces` become the sum of `node`: how often the last two sums become one
// after each piece. These are the joins of kernels/optimizer/optimizer.h. Up to 1 + ceil(log2
// leaves) sums are open at a time, and at most 12 for the 1024 pieces of the largest job.
// Requires: `pieces` is a cut of `node`, by CutNode() or into nodes of nodes.
std::vector<uint8_t> JoinsOf(SumNode node, absl::Span<const SumNode> pieces);

// A useful number of workers: with one less, the largest node would have more leaves. A step takes
// as long as the largest node.
struct UsefulWorkers {
  int64_t workers = 0;
  int64_t largest_node = 0;  // its leaves

  friend bool operator==(const UsefulWorkers&, const UsefulWorkers&) = default;
};

// Returns the useful numbers of workers for a tree of `leaves` leaves, ascending: 1, 2, 4, 6 for
// six leaves. Requires: leaves >= 1.
std::vector<UsefulWorkers> UsefulWorkersOf(int64_t leaves);

// Returns the leaves of the largest node if `workers` workers cut a tree of `leaves` leaves.
// Requires: 1 <= workers <= leaves.
int64_t LargestNode(int64_t leaves, int64_t workers);

// Samples [first, first + count) of a batch.
struct BatchShare {
  int64_t first = 0;
  int64_t count = 0;

  friend bool operator==(const BatchShare&, const BatchShare&) = default;
};

// Returns the samples of a node if a batch is cut into the `leaves` leaves of the tree: all have
// equally many, and the first ones one more if `leaves` does not divide the batch. Requires: `node`
// lies in the tree, leaves <= batch_size.
BatchShare ShareOfNode(int64_t batch_size, int64_t leaves, SumNode node);

}  // namespace muster
