// The blocks of a model: what recomputation keeps and repeats.
#pragma once

#include <vector>

#include "proto/muster/v1/graph.pb.h"

namespace muster {

// The block of every node of a forward graph, counted from 0 in the order of the nodes. Names tell:
// "blocks.3.mlp.fc" and "blocks.3.ln" are of block "blocks.3", "layer2.0.conv1" of "layer2.0"; a
// node whose name has no number belongs to the block before it. Where names make blocks of fewer
// than four nodes on average, or none, it is about √n runs of √n nodes.
//   Source of √n: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
std::vector<int> FindBlocks(const v1::Graph& forward);

}  // namespace muster
