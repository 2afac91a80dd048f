// Trades time for memory: backward computes the activations inside a block again.
#pragma once

#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Requires: `graph` is the result of Differentiate(forward).
//
// Backward keeps only tensors that cross blocks (FindBlocks). The nodes of a block that the block's
// backward pass needs are repeated directly before that pass. The last block is not repeated,
// because its backward comes first. Values stay the same to the bit: random numbers depend on
// positions, and statistics come from the first computation.
v1::Graph Recompute(const v1::Graph& forward, const v1::Graph& graph);

}  // namespace muster
