// Mixed precision as a graph transformation.
#pragma once

#include "absl/status/statusor.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Returns `forward` with trained parameters, and all tensors that depend on them, in `dtype` (bf16
// or f16). These stay f32: statistics, tensors that ops.md marks f32, and tensors that depend on no
// trained parameter (masks, scaled inputs). A Cast converts between the types; a Constant is made
// in either type. Requires: `forward` is f32 and not differentiated. Returns INVALID_ARGUMENT like
// InferTypes.
//   Source: Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.
absl::StatusOr<v1::Graph> LowerPrecision(const v1::Graph& forward, v1::DType dtype);

}  // namespace muster
