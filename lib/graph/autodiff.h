// Reverse-mode automatic differentiation as a graph transformation.
#pragma once

#include "absl/status/statusor.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// `forward` followed by the backward nodes of lib/graph/ops.md, in an order in which gradients of
// late parameters come first; gradients[p] names the tensor of d loss / d parameter p. Nodes that
// do not lead to the loss (CorrectCount) stay in place. INVALID_ARGUMENT when the loss is missing,
// a parameter does not reach it, or an op has no derivative.
//   Source: Griewank & Walther, Evaluating Derivatives, 2nd ed., section 3.2 (adjoint
//   accumulation).
absl::StatusOr<v1::Graph> Differentiate(const v1::Graph& forward);

}  // namespace muster
