// From the forward graph of a plan, always f32 and in training form, to what a device runs.
#pragma once

#include "absl/status/statusor.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

struct LoweringOptions {
  v1::Precision precision = v1::FP32;  // TF32 is FP32 here: the executor's affair
  bool recompute = false;  // keep what crosses blocks, compute the rest again in backward
  bool fuse = true;
};

// Forward and backward: parameters, their order and graph inputs are those of `forward`, dtypes
// follow the precision, gradients[p] belongs to parameters[p]. INVALID_ARGUMENT as Differentiate.
absl::StatusOr<v1::Graph> TrainingGraph(const v1::Graph& forward, const LoweringOptions& options);

// Forward for evaluation: no dropout, batch norms with their running values. Loss, logits and
// correct are those of the returned graph: dropout that made one of them is gone.
absl::StatusOr<v1::Graph> InferenceGraph(const v1::Graph& forward, const LoweringOptions& options);

}  // namespace muster
