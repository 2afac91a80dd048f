#include "lib/graph/lowering/dead_nodes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "google/protobuf/repeated_field.h"

namespace muster {

void RemoveDeadNodes(v1::Graph& graph) {
  absl::flat_hash_set<std::string> read(graph.gradients().begin(), graph.gradients().end());
  read.insert({graph.loss(), graph.logits(), graph.correct()});
  google::protobuf::RepeatedPtrField<v1::Node> live;
  for (int i = graph.nodes_size() - 1; i >= 0; --i) {
    v1::Node& node = *graph.mutable_nodes(i);
    if (std::ranges::none_of(node.outputs(),
                             [&](const std::string& y) { return read.contains(y); })) {
      continue;
    }
    read.insert(node.inputs().begin(), node.inputs().end());
    live.Add(std::move(node));
  }
  std::reverse(live.begin(), live.end());
  graph.mutable_nodes()->Swap(&live);
}

}  // namespace muster
