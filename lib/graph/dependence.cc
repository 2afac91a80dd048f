#include "lib/graph/dependence.h"

#include "lib/graph/dtype.h"
#include "lib/graph/operator.h"

namespace muster {
namespace {

bool ReadsOneOf(const absl::flat_hash_set<std::string>& tensors, const v1::Node& node) {
  const Operator& op = *FindOperator(node.op());
  for (int i = 0; i < node.inputs_size(); ++i) {
    if (!op.input(i).is_like() && tensors.contains(node.inputs(i))) return true;
  }
  return false;
}

enum class Steps { kPass, kStop };

absl::flat_hash_set<std::string> Reached(const v1::Graph& graph, const TensorTypes& types,
                                         Steps steps) {
  absl::flat_hash_set<std::string> dependent;
  for (const v1::Parameter& parameter : graph.parameters()) {
    if (!parameter.has_statistic_momentum()) dependent.insert(parameter.name());
  }
  for (const v1::Node& node : graph.nodes()) {
    if (steps == Steps::kStop && FindOperator(node.op())->is_step) continue;
    if (!ReadsOneOf(dependent, node)) continue;
    for (const std::string& output : node.outputs()) {
      if (IsFloating(types.at(output).dtype)) dependent.insert(output);
    }
  }
  return dependent;
}

}  // namespace

absl::flat_hash_set<std::string> DependentOnTrained(const v1::Graph& graph,
                                                    const TensorTypes& types) {
  return Reached(graph, types, Steps::kPass);
}

absl::flat_hash_set<std::string> DifferentiableInTrained(const v1::Graph& graph,
                                                         const TensorTypes& types) {
  return Reached(graph, types, Steps::kStop);
}

}  // namespace muster
