// Finds the tensors of a graph that depend on trained parameters.
#pragma once

#include <string>

#include "absl/container/flat_hash_set.h"
#include "lib/graph/shape_inference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Returns the trained parameters and every floating tensor computed from one, not from its shape
// alone.
absl::flat_hash_set<std::string> DependentOnTrained(const v1::Graph& graph,
                                                    const TensorTypes& types);

// Returns the tensors of DependentOnTrained() through which a gradient may flow back. Tensors that
// depend on a parameter only through step functions (Operator::is_step) are excluded.
absl::flat_hash_set<std::string> DifferentiableInTrained(const v1::Graph& graph,
                                                         const TensorTypes& types);

}  // namespace muster
