// Removes nodes with unused results.
#pragma once

#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Removes nodes from which no path leads to loss, logits, correct or a gradient. Inputs and
// parameters stay.
void RemoveDeadNodes(v1::Graph& graph);

}  // namespace muster
