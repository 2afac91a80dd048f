// Converts a graph from training form to inference form.
#pragma once

#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Returns the graph without dropout, and with batch norms that use their running values. If the
// loss, logits or correct was the output of a dropout, its input takes the role.
v1::Graph InferenceForm(v1::Graph graph);

}  // namespace muster
