// Broadcasts shapes as numpy does: aligned at the last dimension, sizes of 1 stretch.
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

// Returns INVALID_ARGUMENT if impossible: "dimensions [2, 3] and [4] do not broadcast".
absl::StatusOr<std::vector<int64_t>> Broadcast(absl::Span<const int64_t> a,
                                               absl::Span<const int64_t> b);

// Binds "...y" to the broadcast shape of "...a" and "...b".
absl::Status RelateBroadcast(const v1::Node& node, Dimensions& dimensions);

// Checks a gradient of an operand "...a" that was broadcast to "...y". "...y" may be larger,
// because the forward node can have operands that this node does not have.
absl::Status RelateBroadcastGradient(const v1::Node& node, Dimensions& dimensions);

}  // namespace muster
