// What a graph costs, by the usual arithmetic: for people and benchmarks, not for decisions.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "lib/graph/shape_inference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

struct Cost {
  // Multiply-adds count twice. Only matrix products, convolutions, attention (causal too: in full,
  // as Chowdhery et al. 2022, appendix B) and recurrences count, as everybody counts a model's
  // FLOPs; what the rest costs, its bytes tell.
  int64_t flops = 0;
  // Every tensor that a node reads or writes, once per node: what memory moves when nothing stays
  // in a cache. Aliases (Reshape) move nothing.
  int64_t bytes = 0;

  Cost& operator+=(const Cost& other);
};

// `types` are those of the node's graph.
Cost NodeCost(const v1::Node& node, const TensorTypes& types);

struct TrainingCost {
  Cost forward;
  Cost backward;
};

// Of one step over `batch` samples. `forward` is not differentiated yet. INVALID_ARGUMENT as
// Differentiate and InferTypes.
absl::StatusOr<TrainingCost> GraphCost(const v1::Graph& forward, int64_t batch);

struct ParameterCount {
  int64_t trained = 0;    // elements
  int64_t statistic = 0;  // likewise
};
ParameterCount CountParameters(const v1::Graph& graph);

}  // namespace muster
