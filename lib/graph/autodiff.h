// Reverse-mode automatic differentiation as a graph transformation.
#pragma once

#include "absl/status/statusor.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// `forward` followed by the backward nodes of lib/graph/ops.md, in an order in which gradients of
// late parameters come first. gradients[p] names a tensor of its own: d loss / d parameter p, or
// for a statistic this run's contribution. Nodes that do not lead to the loss (CorrectCount) stay
// in place. INVALID_ARGUMENT when the loss is missing or is no (total of) loss functions, trained
// parameters do not reach it, statistics feed no BatchNorm, or an op has no derivative.
//   Source: Griewank & Walther, Evaluating Derivatives, 2nd ed., section 3.2 (adjoint
//   accumulation).
absl::StatusOr<v1::Graph> Differentiate(const v1::Graph& forward);

}  // namespace muster
