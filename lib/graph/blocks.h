// Finds the blocks of a model, the units that recomputation keeps and repeats.
#pragma once

#include <vector>

#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Returns the block of every node of a forward graph, counted from 0 in the order of the nodes.
// Names define blocks: "blocks.3.mlp.fc" and "blocks.3.ln" belong to "blocks.3", "layer2.0.conv1"
// to "layer2.0". A node without a number in its name belongs to the block before it. If names
// define fewer than two blocks, or blocks of fewer than four nodes on average, the result is about
// √n runs of √n nodes.
//   Source of √n: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
std::vector<int> FindBlocks(const v1::Graph& forward);

}  // namespace muster
