// Checks the graph of a rank.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "lib/graph/shape_inference.h"
#include "lib/graph/tensor_parallel/placement.h"
#include "lib/graph/tensor_parallel/plan.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

using Placements = absl::flat_hash_map<std::string, TensorPlacement>;

// Returns the placement of every tensor of a rank's forward graph, given its divided parameters.
// All other parameters and the inputs are whole. The rules of each op ensure:
//
// - Every tensor is a correct part of that of the whole graph, or all of it.
// - Only AllReduce reads a term of a sum. So the gradient of every term is whole.
// - A whole tensor that needs a gradient meets a divided one only after a GradientAllReduce. So the
//   gradients of whole tensors and parameters are whole and equal on all ranks.
//
// Shares no code with PlanSplits and SplitTensors, except the lists of pointwise ops. Requires:
// `types` are those of `graph`, for a batch of at least 2. Returns INVALID_ARGUMENT, naming the
// node, if a rule is broken.
absl::StatusOr<Placements> CheckPlacements(const v1::Graph& graph, const TensorTypes& types,
                                           const TensorSplits& parameters,
                                           const TensorParallel& group);

}  // namespace muster
