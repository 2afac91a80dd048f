#include "lib/data/id_limit.h"

#include <algorithm>
#include <limits>

#include "absl/strings/string_view.h"

namespace muster {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// Rows of the node's second input when that is a parameter: an Embedding's table f32[ids, channel],
// a Linear's weight f32[outputs, inputs].
int64_t RowsOfParameter(const v1::Graph& graph, const v1::Node& node) {
  if (node.inputs_size() < 2) return kUnlimited;
  for (const v1::Parameter& parameter : graph.parameters()) {
    if (parameter.name() == node.inputs(1) && parameter.shape_size() > 0) return parameter.shape(0);
  }
  return kUnlimited;
}

}  // namespace

int64_t InputIdLimit(const v1::Graph& graph) {
  int64_t limit = kUnlimited;
  for (const v1::Node& node : graph.nodes()) {
    if (node.op() == "Embedding" && node.inputs_size() > 0 && node.inputs(0) == "input") {
      limit = std::min(limit, RowsOfParameter(graph, node));
    }
  }
  return limit;
}

int64_t TargetIdLimit(const v1::Graph& graph) {
  for (const v1::Node& node : graph.nodes()) {
    if (node.op() == "Linear" && node.outputs_size() > 0 && node.outputs(0) == graph.logits()) {
      return RowsOfParameter(graph, node);
    }
  }
  return kUnlimited;
}

}  // namespace muster
