// A graph in training form, as it evaluates.
#pragma once

#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Without dropout, and with batch norms that use their running values. Where dropout made the loss,
// logits or correct, its input takes the role.
v1::Graph InferenceForm(v1::Graph graph);

}  // namespace muster
