// Mixed precision as a graph transformation.
#pragma once

#include "absl/status/statusor.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// `forward`, an f32 graph that is not differentiated, with trained parameters and all that depends
// on them in `dtype` (bf16 or f16). Statistics, what ops.md marks f32 and what depends on no
// trained parameter (masks, scaled inputs) stay f32; a Cast stands between, a Constant is made in
// either type. INVALID_ARGUMENT as InferTypes.
//   Source: Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.
absl::StatusOr<v1::Graph> LowerPrecision(const v1::Graph& forward, v1::DType dtype);

}  // namespace muster
