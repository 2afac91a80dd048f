#include "lib/graph/tensor_parallel/linear_form.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "google/protobuf/repeated_field.h"
#include "lib/graph/attributes.h"

namespace muster {

void UseLinearForm(const TensorTypes& types, v1::Graph& graph) {
  absl::flat_hash_set<std::string> parameters;
  for (const v1::Parameter& parameter : graph.parameters()) parameters.insert(parameter.name());
  absl::flat_hash_map<std::string, std::string> weights;  // by the output of their Transpose
  for (const v1::Node& node : graph.nodes()) {
    if (node.op() != "Transpose" || !parameters.contains(node.inputs(0))) continue;
    if (IntegersAttribute(node, "permutation") != std::vector<int64_t>{1, 0}) continue;
    weights[node.outputs(0)] = node.inputs(0);
  }
  for (v1::Node& node : *graph.mutable_nodes()) {
    if (node.op() != "MatMul" || types.at(node.inputs(0)).shape.size() < 2) continue;
    const auto weight = weights.find(node.inputs(1));
    const bool transposes =
        IntegerAttribute(node, "transpose_a") != 0 || IntegerAttribute(node, "transpose_b") != 0;
    if (weight == weights.end() || transposes) continue;
    node.set_op("Linear");
    node.clear_attributes();
    node.set_inputs(1, weight->second);
  }
  absl::flat_hash_set<std::string> read = {graph.loss(), graph.logits(), graph.correct()};
  for (const v1::Node& node : graph.nodes())
    read.insert(node.inputs().begin(), node.inputs().end());
  google::protobuf::RepeatedPtrField<v1::Node>& nodes = *graph.mutable_nodes();
  nodes.erase(std::remove_if(nodes.begin(), nodes.end(),
                             [&](const v1::Node& node) {
                               return weights.contains(node.outputs(0)) &&
                                      !read.contains(node.outputs(0));
                             }),
              nodes.end());
}

}  // namespace muster
