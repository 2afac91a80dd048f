// Attributes that name dimensions of a tensor, checked.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Whether attribute `axis` or every one of `axes` is in [-rank, rank); `axes` name none twice.
absl::Status CheckAxis(const v1::Node& node, int64_t rank);
absl::Status CheckAxes(const v1::Node& node, int64_t rank);

}  // namespace muster
