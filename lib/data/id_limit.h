// Which ids a model takes, read from its graph.
#pragma once

#include <cstdint>

#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Ids of "input" that every Embedding of it has a row for: [0, limit). The largest int64 where
// nothing bounds them.
int64_t InputIdLimit(const v1::Graph& graph);

// Likewise ids of "target": the outputs of the Linear that makes the logits.
int64_t TargetIdLimit(const v1::Graph& graph);

}  // namespace muster
