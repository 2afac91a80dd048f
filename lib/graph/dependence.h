// What in a graph depends on what is trained.
#pragma once

#include <string>

#include "absl/container/flat_hash_set.h"
#include "lib/graph/shape_inference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// The trained parameters and every floating tensor computed from one, not from its shape alone.
absl::flat_hash_set<std::string> DependentOnTrained(const v1::Graph& graph,
                                                    const TensorTypes& types);

// Those of them that a gradient may flow back through: not what comes from a parameter by steps
// alone (Operator::is_step).
absl::flat_hash_set<std::string> DifferentiableInTrained(const v1::Graph& graph,
                                                         const TensorTypes& types);

}  // namespace muster
