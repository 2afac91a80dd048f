#include "lib/graph/lowering/inference_form.h"

#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "google/protobuf/repeated_field.h"

namespace muster {
namespace {

void UseRunningValues(v1::Node& node) {
  node.set_op("BatchNormInference");
  node.mutable_attributes()->erase("synchronised");
  node.mutable_outputs()->DeleteSubrange(1, node.outputs_size() - 1);
}

}  // namespace

v1::Graph InferenceForm(v1::Graph graph) {
  absl::flat_hash_map<std::string, std::string> passed;  // maps a dropout's output to its input
  const auto forward = [&](std::string& tensor) {
    auto found = passed.find(tensor);
    if (found != passed.end()) tensor = found->second;
  };
  google::protobuf::RepeatedPtrField<v1::Node> nodes;
  for (v1::Node& node : *graph.mutable_nodes()) {
    for (std::string& input : *node.mutable_inputs()) forward(input);
    if (node.op() == "Dropout") {
      passed[node.outputs(0)] = node.inputs(0);
      continue;
    }
    if (node.op() == "BatchNorm") UseRunningValues(node);
    nodes.Add(std::move(node));
  }
  graph.mutable_nodes()->Swap(&nodes);
  forward(*graph.mutable_loss());
  forward(*graph.mutable_logits());
  forward(*graph.mutable_correct());
  return graph;
}

}  // namespace muster
