#include "lib/text/logical_workers.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/plan/sum_tree.h"

namespace muster {
namespace {

constexpr int64_t kListedMax = 16;

}  // namespace

std::string LogicalWorkersOfEach(int64_t logical, int64_t workers) {
  std::vector<int64_t> leaves;
  for (const SumNode& node : CutNode({.leaves = logical}, workers)) leaves.push_back(node.leaves);
  if (workers <= kListedMax) return absl::StrJoin(leaves, ", ");
  const auto [least, most] = std::ranges::minmax(leaves);
  return absl::StrCat(least, least == most ? "" : absl::StrCat(" to ", most), " each");
}

}  // namespace muster
