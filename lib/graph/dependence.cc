#include "lib/graph/dependence.h"

#include <algorithm>

#include "lib/graph/dtype.h"

namespace muster {

absl::flat_hash_set<std::string> DependentOnTrained(const v1::Graph& graph,
                                                    const TensorTypes& types) {
  absl::flat_hash_set<std::string> dependent;
  for (const v1::Parameter& parameter : graph.parameters()) {
    if (!parameter.has_statistic_momentum()) dependent.insert(parameter.name());
  }
  for (const v1::Node& node : graph.nodes()) {
    if (std::ranges::none_of(node.inputs(),
                             [&](const std::string& x) { return dependent.contains(x); })) {
      continue;
    }
    for (const std::string& output : node.outputs()) {
      if (IsFloating(types.at(output).dtype)) dependent.insert(output);
    }
  }
  return dependent;
}

}  // namespace muster
