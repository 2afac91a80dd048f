#include "lib/plan/graph_size.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/limits/limits.h"

namespace muster {
namespace {

constexpr size_t kNodesShown = 3;

}  // namespace

std::optional<FieldFault> GraphSizeFault(const v1::ModelSpec& model, const v1::Graph& graph) {
  const auto bytes = static_cast<int64_t>(graph.ByteSizeLong());
  if (bytes <= limits::kGraphBytesMax) return std::nullopt;
  std::vector<std::pair<size_t, const v1::Node*>> nodes;
  for (const v1::Node& node : graph.nodes()) nodes.emplace_back(node.ByteSizeLong(), &node);
  if (nodes.empty()) {  // only parameters, whose number is limited
    return FieldFault{"model.external",
                      absl::StrCat("has ", graph.parameters_size(),
                                   " parameters with names and "
                                   "shapes of ",
                                   bytes, " bytes, at most ", limits::kGraphBytesMax,
                                   " fit into a job's plan: make their names shorter")};
  }
  const size_t shown = std::min(nodes.size(), kNodesShown);
  std::ranges::partial_sort(nodes, nodes.begin() + shown, std::greater<>(),
                            [](const auto& node) { return node.first; });
  std::vector<std::string> largest;
  for (size_t i = 0; i < shown; ++i) {
    largest.push_back(absl::StrCat("'", nodes[i].second->name(), "' (", nodes[i].second->op(), ", ",
                                   nodes[i].first, " bytes)"));
  }
  return FieldFault{
      model.has_onnx() ? "model.onnx" : "model",
      absl::StrCat("is a graph of ", bytes, " bytes, at most ", limits::kGraphBytesMax,
                   " fit into a job's plan; its largest nodes are ", absl::StrJoin(largest, ", "),
                   model.has_onnx() ? ": list constants of the file under onnx.train, and give "
                                      "them a parameter group with frozen: true"
                                    : ": make the model smaller")};
}

}  // namespace muster
