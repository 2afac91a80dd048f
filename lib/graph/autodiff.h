// Reverse-mode automatic differentiation as a graph transformation.
#pragma once

#include "absl/status/statusor.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Returns `forward` followed by the backward nodes of lib/graph/ops.md. Gradients of late
// parameters come first. gradients[p] names a separate tensor: d loss / d parameter p, or for a
// statistic this run's contribution. Nodes that do not lead to the loss (CorrectCount) stay in
// place.
//
// Returns INVALID_ARGUMENT in these cases:
// - the graph is not valid (see InferTypes), has no parameters or is differentiated already;
// - the loss is missing, or is not a loss function or a total of different ones;
// - a trained parameter does not reach the loss;
// - a statistic feeds no BatchNorm, or more than one;
// - an op has no derivative.
//
//   Source: Griewank & Walther, Evaluating Derivatives, 2nd ed., section 3.2 (adjoint
//   accumulation).
absl::StatusOr<v1::Graph> Differentiate(const v1::Graph& forward);

}  // namespace muster
