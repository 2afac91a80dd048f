// Decides which tensors of a graph its ranks divide.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "lib/graph/shape_inference.h"
#include "lib/graph/tensor_parallel/placement.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// A tensor or parameter that is divided along one dimension.
struct DividedTensor {
  int dim = 0;
  DimensionSplit split;

  friend bool operator==(const DividedTensor&, const DividedTensor&) = default;
};
using TensorSplits = absl::flat_hash_map<std::string, DividedTensor>;

// Divides these parts of a graph, and nothing else:
//
// - Two linear layers with elementwise ops or attention in between. The first is divided along
//   its outputs, attention by heads, the second along its inputs.
//     Source: Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3.
// - An Embedding with at least as many rows as columns in its table, by rows. A smaller table is
//   not worth a sum over the ranks.
// - A linear layer that makes the logits of a SoftmaxCrossEntropy, by classes.
//
// A linear layer is a Linear, or a MatMul with a parameter of two dimensions. A parameter is
// divided only if all its uses agree. Every rank computes the rest of the graph.
//
// Requires: `graph` is not differentiated; FuseAttention has run; `types` are its types for a batch
// of at least 2; degree >= 2. Returns INVALID_ARGUMENT, naming a node, if attention has fewer heads
// than ranks, or if nothing can be divided.
absl::StatusOr<TensorSplits> PlanSplits(const v1::Graph& graph, const TensorTypes& types,
                                        int degree);

// Returns whether `op` is a function of each element alone, with one input.
bool IsPointwise(const std::string& op);

// Returns whether `op` is a function of the elements of two inputs that broadcast.
bool IsPointwiseOfTwo(const std::string& op);

// Returns whether the node only moves rows of its input: the last dimension stays what it is.
bool KeepsRows(const v1::Node& node, const TensorTypes& types);

// The weight of a linear layer.
struct LinearWeight {
  int outputs_dim = 0;
  int inputs_dim = 1;
};

// Returns the dimensions of input 1 if the node is a linear layer: a Linear, or a MatMul with two
// dimensions on the right.
absl::optional<LinearWeight> LinearWeightOf(const v1::Node& node, const TensorTypes& types);

}  // namespace muster
