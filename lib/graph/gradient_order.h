// The order in which a training graph's gradients become final.
#pragma once

#include <vector>

#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Returns every parameter of a differentiated graph once, in the order in which gradients become
// final. A gradient counts as final when the last node that uses it or its parameter has run.
std::vector<int> GradientOrder(const v1::Graph& graph);

}  // namespace muster
