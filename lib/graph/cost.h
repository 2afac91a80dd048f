// Estimates the cost of a graph by the usual arithmetic. For reports and benchmarks, not for
// decisions.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "lib/graph/shape_inference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

struct Cost {
  // Multiply-adds count twice. Only matrix products, convolutions, attention and recurrences count,
  // as is usual for a model's FLOPs. Causal attention counts in full, as in Chowdhery et al. 2022,
  // appendix B. `bytes` shows the cost of all other nodes.
  int64_t flops = 0;
  // Every tensor that a node reads or writes, once per node: the memory traffic if caches keep
  // nothing. A node that indexes a table reads only the rows that it outputs. Aliases (Reshape)
  // move nothing.
  int64_t bytes = 0;

  Cost& operator+=(const Cost& other);
};

// Requires: `types` are the types of the node's graph.
Cost NodeCost(const v1::Node& node, const TensorTypes& types);

struct TrainingCost {
  Cost forward;
  Cost backward;
};

// Returns the cost of one step over `batch` samples. Requires: `forward` is not differentiated yet.
// Returns INVALID_ARGUMENT like Differentiate and InferTypes.
absl::StatusOr<TrainingCost> GraphCost(const v1::Graph& forward, int64_t batch);

struct ParameterCount {
  int64_t trained = 0;    // elements
  int64_t statistic = 0;  // elements
};
ParameterCount CountParameters(const v1::Graph& graph);

}  // namespace muster
