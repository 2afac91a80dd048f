// Orders the backward pass of a split graph.
#pragma once

#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Moves the gradients of a layer's weight and bias behind the sum over the ranks (AllReduce) of the
// gradient of its input. A GPU computes them while it sums. Several layers with the same input have
// one sum. A graph without sums stays as it is.
void PutSumsFirst(v1::Graph& graph);

}  // namespace muster
