#include "lib/graph/operators/axes.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/graph/attributes.h"
#include "lib/status/status.h"

namespace muster {
namespace {

absl::Status CheckRange(int64_t axis, int64_t rank) {
  if (axis >= -rank && axis < rank) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("there is no dimension ", axis, " among ", rank));
}

}  // namespace

absl::Status CheckAxis(const v1::Node& node, int64_t rank) {
  return CheckRange(IntegerAttribute(node, "axis"), rank);
}

absl::Status CheckAxes(const v1::Node& node, int64_t rank) {
  for (int64_t axis : IntegersAttribute(node, "axes")) RETURN_IF_ERROR(CheckRange(axis, rank));
  const std::vector<int64_t> axes = AxesAttribute(node, rank);
  const auto twice = std::ranges::adjacent_find(axes);
  if (twice == axes.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("attribute 'axes' names dimension ", *twice, " twice"));
}

}  // namespace muster
