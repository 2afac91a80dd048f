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

std::vector<AttributeRule> PartRules() {
  constexpr double kSizeMax = 2147483647.0;
  return {Integer("first").Default(0).Within(0, kSizeMax),
          Integer("whole").Optional().Within(1, kSizeMax)};
}

absl::Status CheckPart(const v1::Node& node, int64_t own) {
  const DimensionPart part = PartAttributes(node, own);
  if (part.first + own <= part.whole) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the part of ", own, " elements from ", part.first,
                                                 " on is not inside the whole of ", part.whole));
}

}  // namespace muster
