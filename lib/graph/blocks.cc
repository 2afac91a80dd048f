#include "lib/graph/blocks.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace muster {
namespace {

// The fewest nodes of a block on average: recomputing smaller blocks saves nothing.
constexpr int kNodesMin = 4;

// Returns "blocks.3" for "blocks.3.mlp.fc"; "" if no component is a number.
absl::string_view BlockName(absl::string_view name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find_first_of("./", begin), name.size());
    const absl::string_view component = name.substr(begin, end - begin);
    if (!component.empty() && std::ranges::all_of(component, absl::ascii_isdigit)) {
      return name.substr(0, end);
    }
    begin = end + 1;
  }
  return "";
}

}  // namespace

std::vector<int> FindBlocks(const v1::Graph& forward) {
  std::vector<int> blocks;
  absl::string_view current;
  int block = 0;
  for (const v1::Node& node : forward.nodes()) {
    const absl::string_view name = BlockName(node.name());
    if (!name.empty() && name != current) {
      current = name;
      if (!blocks.empty()) ++block;
    }
    blocks.push_back(block);
  }
  const int n = blocks.size();
  if (block > 0 && n >= kNodesMin * (block + 1)) return blocks;
  const int run = std::max<int>(1, std::ceil(std::sqrt(n)));
  for (int i = 0; i < n; ++i) blocks[i] = i / run;
  return blocks;
}

}  // namespace muster
