// Checks attributes that name dimensions of a tensor.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Return an error unless `axis`, or each of `axes`, is in [-rank, rank). `axes` must not repeat.
absl::Status CheckAxis(const v1::Node& node, int64_t rank);
absl::Status CheckAxes(const v1::Node& node, int64_t rank);

}  // namespace muster
