// Lowers the forward graph of a plan, always f32 and in training form, to a graph that a device
// runs.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "lib/graph/tensor_parallel/placement.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

struct LoweringOptions {
  v1::Precision precision = v1::FP32;  // TF32 is treated as FP32: the executor handles it
  // Keep only tensors that cross blocks; compute the others again in backward.
  bool recompute = false;
  bool fuse = true;
  // Leave logits and correct out of a training graph. A trainer reads neither, and the gradient of
  // the logits can then take their memory.
  bool only_loss = false;
  // The device's rank among those that share the graph. degree 1: the graph is whole.
  TensorParallel tensor_parallel = {};
};

// Returns forward and backward. Parameters, their order and the graph inputs are those of
// `forward`, except that a divided parameter has the shape of the rank's slice. Dtypes follow the
// precision, and gradients[p] belongs to parameters[p]. Returns INVALID_ARGUMENT like Differentiate
// and SplitTensors.
absl::StatusOr<v1::Graph> TrainingGraph(const v1::Graph& forward, const LoweringOptions& options);

// Returns forward for evaluation: no dropout, batch norms with their running values. Take loss,
// logits and correct from the returned graph: a dropout that made one of them is gone, and a split
// graph may have no logits. Parameters are divided as in the TrainingGraph of the same options.
absl::StatusOr<v1::Graph> InferenceGraph(const v1::Graph& forward, const LoweringOptions& options);

// Returns the rank's part of `forward`, before it is lowered. GraphCost() counts its operations.
// Fails as SplitTensors does.
absl::StatusOr<v1::Graph> ForwardGraph(const v1::Graph& forward, const LoweringOptions& options);

// Returns what the graphs of these options have of each parameter.
absl::StatusOr<std::vector<ParameterSlice>> ParameterSlices(const v1::Graph& forward,
                                                            const LoweringOptions& options);

}  // namespace muster
