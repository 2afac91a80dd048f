// Shapes as numpy broadcasts them: aligned at the last dimension, 1 stretches.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/graph/operator.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// INVALID_ARGUMENT: "dimensions [2, 3] and [4] do not broadcast".
absl::StatusOr<std::vector<int64_t>> Broadcast(absl::Span<const int64_t> a,
                                               absl::Span<const int64_t> b);

// Binds "...y" to what "...a" and "...b" broadcast to.
absl::Status RelateBroadcast(const v1::Node& node, Dimensions& dimensions);

// A gradient whose own operand "...a" was broadcast to "...y", perhaps by more than is known here.
absl::Status RelateBroadcastGradient(const v1::Node& node, Dimensions& dimensions);

}  // namespace muster
