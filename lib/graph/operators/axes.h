// Checks attributes that name dimensions of a tensor.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "lib/graph/operator.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Return an error unless `axis`, or each of `axes`, is in [-rank, rank). `axes` must not repeat.
absl::Status CheckAxis(const v1::Node& node, int64_t rank);
absl::Status CheckAxes(const v1::Node& node, int64_t rank);

// The attributes of a node that has a part of a dimension: see PartAttributes.
std::vector<AttributeRule> PartRules();

// Returns an error unless [first, first + own) is inside the whole.
absl::Status CheckPart(const v1::Node& node, int64_t own);

}  // namespace muster
