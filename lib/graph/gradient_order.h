// In which order a training graph's gradients become final.
#pragma once

#include <vector>

#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Every parameter of a differentiated graph once, those whose gradient is final first (nodes run in
// the graph's order, and the parameter's last reader is behind it) first.
std::vector<int> GradientOrder(const v1::Graph& graph);

}  // namespace muster
