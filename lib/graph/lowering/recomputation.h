// Trades time for memory: activations inside a block are computed again in backward.
#pragma once

#include "proto/muster/v1/graph.pb.h"

namespace muster {

// `graph` is what Differentiate made of `forward`. Only tensors that cross blocks (FindBlocks) are
// kept for backward; the nodes of a block that its backward needs are repeated right before it. The
// last block is not: its backward comes first. Values stay the same to the bit, for random numbers
// are counted by position, and statistics come from the first time.
v1::Graph Recompute(const v1::Graph& forward, const v1::Graph& graph);

}  // namespace muster
