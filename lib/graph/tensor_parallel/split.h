// Divides a graph among the ranks of a tensor-parallel group.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "lib/graph/shape_inference.h"
#include "lib/graph/tensor_parallel/placement.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

struct SplitGraph {
  v1::Graph graph;
  std::vector<ParameterSlice> slices;  // one per parameter
};

// Returns the graph of one rank. Its parameters, inputs and their order are those of `graph`, but a
// divided parameter has the shape of the rank's slice. The nodes of all ranks are the same, except
// sizes and positions in their attributes. Tensors that are not divided have the same values as in
// `graph`, up to the order of sums. The graph has no logits if they are divided.
//
// PlanSplits() lists the divided parts. Everything else stays whole: attention with dropout of its
// probabilities, logits that a CorrectCount reads, convolutions, recurrences and norms.
//
// Requires: `graph` is not differentiated; FuseAttention has run, if it is to run at all; `types`
// are its types for a batch of at least 2; group.degree >= 2. Returns INVALID_ARGUMENT, naming a
// node, if attention has fewer heads than ranks, or if nothing can be divided.
absl::StatusOr<SplitGraph> SplitTensors(const v1::Graph& graph, const TensorTypes& types,
                                        const TensorParallel& group);

}  // namespace muster
