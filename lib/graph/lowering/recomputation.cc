#include "lib/graph/lowering/recomputation.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/graph/blocks.h"
#include "lib/graph/operator.h"

namespace muster {
namespace {

class Recomputation {
 public:
  Recomputation(const v1::Graph& forward, const v1::Graph& graph)
      : forward_nodes_(forward.nodes_size()), blocks_(FindBlocks(forward)), graph_(graph) {
    CHECK_LE(forward_nodes_, graph.nodes_size());
    for (const v1::Node& node : graph.nodes()) {
      names_.insert(node.name());
      names_.insert(node.outputs().begin(), node.outputs().end());
    }
    for (int i = 0; i < forward_nodes_; ++i) {
      for (const std::string& output : graph.nodes(i).outputs()) makers_[output] = i;
    }
    FindDropped();
    FindRepeated();
  }

  v1::Graph Run() && {
    v1::Graph result = graph_;
    result.mutable_nodes()->DeleteSubrange(forward_nodes_, graph_.nodes_size() - forward_nodes_);
    absl::flat_hash_set<int> is_repeated;  // blocks repeated so far
    for (int i = forward_nodes_; i < graph_.nodes_size(); ++i) {
      v1::Node node = graph_.nodes(i);
      for (int block : BlocksRead(node)) {
        if (is_repeated.insert(block).second) Repeat(block, result);
      }
      ReadRepeats(node);
      *result.add_nodes() = std::move(node);
    }
    return result;
  }

 private:
  // Calls f for each input of `node` with a dropped forward value that the node reads, not only its
  // shape. Statistics are excluded: they come from the first computation.
  template <typename F>
  void ForEachDropped(const v1::Node& node, F f) const {
    if (node.op() == "StatisticGrad") return;
    const Operator& op = *FindOperator(node.op());
    for (int x = 0; x < node.inputs_size(); ++x) {
      if (!op.input(x).shape_only && dropped_.contains(node.inputs(x))) f(x);
    }
  }

  // Finds tensors that only their own block reads. Excludes the last block and tensors with a role
  // in the graph.
  void FindDropped() {
    const absl::flat_hash_set<std::string> roles = {graph_.loss(), graph_.logits(),
                                                    graph_.correct()};
    for (int i = 0; i < forward_nodes_; ++i) {
      const v1::Node& node = graph_.nodes(i);
      // A constant needs no computation.
      if (blocks_[i] == blocks_.back() || node.op() == "Constant") continue;
      for (const std::string& output : node.outputs()) {
        if (!roles.contains(output)) dropped_.insert(output);
      }
    }
    for (int i = 0; i < forward_nodes_; ++i) {
      for (const std::string& input : graph_.nodes(i).inputs()) {
        auto maker = makers_.find(input);
        if (maker != makers_.end() && blocks_[maker->second] != blocks_[i]) dropped_.erase(input);
      }
    }
  }

  // Finds the forward nodes that backward needs, directly or through other repeated nodes.
  void FindRepeated() {
    for (int i = graph_.nodes_size() - 1; i >= 0; --i) {
      if (i < forward_nodes_ && !repeated_.contains(i)) continue;
      const v1::Node& node = graph_.nodes(i);
      ForEachDropped(node, [&](int x) { repeated_.insert(makers_.at(node.inputs(x))); });
    }
  }

  std::vector<int> BlocksRead(const v1::Node& node) const {
    std::vector<int> blocks;
    ForEachDropped(node, [&](int x) { blocks.push_back(blocks_[makers_.at(node.inputs(x))]); });
    return blocks;
  }

  void Repeat(int block, v1::Graph& result) {
    const auto begin = std::ranges::lower_bound(blocks_, block) - blocks_.begin();
    for (int i = begin; i < forward_nodes_ && blocks_[i] == block; ++i) {
      if (!repeated_.contains(i)) continue;
      v1::Node& node = *result.add_nodes();
      node = graph_.nodes(i);
      node.set_name(Unique(absl::StrCat(node.name(), "/Recompute")));
      ReadRepeats(node);
      for (std::string& output : *node.mutable_outputs()) {
        output = repeats_[output] = Unique(absl::StrCat(output, " again"));
      }
    }
  }

  void ReadRepeats(v1::Node& node) const {
    ForEachDropped(node, [&](int x) { node.set_inputs(x, repeats_.at(node.inputs(x))); });
  }

  std::string Unique(std::string name) {
    while (!names_.insert(name).second) name += "'";
    return name;
  }

  const int forward_nodes_;
  const std::vector<int> blocks_;
  const v1::Graph& graph_;
  absl::flat_hash_set<std::string> names_;                 // names of nodes and tensors
  absl::flat_hash_map<std::string, int> makers_;           // forward nodes by output
  absl::flat_hash_set<std::string> dropped_;               // tensors
  absl::flat_hash_set<int> repeated_;                      // forward nodes
  absl::flat_hash_map<std::string, std::string> repeats_;  // repeats of dropped tensors
};

}  // namespace

v1::Graph Recompute(const v1::Graph& forward, const v1::Graph& graph) {
  return Recomputation(forward, graph).Run();
}

}  // namespace muster
