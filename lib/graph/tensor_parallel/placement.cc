#include "lib/graph/tensor_parallel/placement.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace muster {

RankRange UnitsOf(int64_t units, const TensorParallel& group) {
  CHECK_GE(units, group.degree);
  const int64_t share = units / group.degree, rest = units % group.degree;
  return {.first = group.rank * share + std::min<int64_t>(group.rank, rest),
          .size = share + (group.rank < rest ? 1 : 0)};
}

RankRange ElementsOf(const DimensionSplit& split, const TensorParallel& group) {
  CHECK_EQ(split.blocks, 1);
  const RankRange units = UnitsOf(split.units, group);
  return {.first = units.first * split.unit_elements(), .size = units.size * split.unit_elements()};
}

int64_t SizeOf(const DimensionSplit& split, const TensorParallel& group) {
  return split.blocks * UnitsOf(split.units, group).size * split.unit_elements();
}

ParameterSlice SliceOf(absl::Span<const int64_t> shape, int dim, const DimensionSplit& split,
                       const TensorParallel& group) {
  int64_t outer = 1, inner = split.unit_elements();
  for (int i = 0; i < static_cast<int>(shape.size()); ++i) {
    if (i < dim) outer *= shape[i];
    if (i > dim) inner *= shape[i];
  }
  const RankRange units = UnitsOf(split.units, group);
  ParameterSlice slice{.offset = units.first * inner,
                       .runs = outer * split.blocks,
                       .run_elements = units.size * inner};
  if (slice.runs > 1) slice.stride = split.units * inner;
  return slice;
}

std::string TensorPlacement::ToString() const {
  switch (kind) {
    case Kind::kReplicated:
      return "whole";
    case Kind::kShared:
      return "whole, with a part of the gradient";
    case Kind::kPartial:
      return "a term of a sum";
    case Kind::kShard:
      break;
  }
  return absl::StrCat("a part of dimension ", dim, " (", split.size, " elements in ", split.blocks,
                      " x ", split.units, " units)");
}

}  // namespace muster
