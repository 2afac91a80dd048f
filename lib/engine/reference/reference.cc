#include "lib/engine/reference/reference.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "lib/engine/reference/operators.h"

namespace muster::reference {
namespace {

const v1::Attribute* Find(const v1::Node& node, absl::string_view name) {
  const auto it = node.attributes().find(std::string(name));
  return it == node.attributes().end() ? nullptr : &it->second;
}

const Operators& AllOperators() {
  static const Operators& operators = *[] {
    auto* all = new Operators;
    AddMatrixProducts(*all);
    AddImageOperators(*all);
    AddNorms(*all);
    AddElementwise(*all);
    AddReductions(*all);
    AddShapeOperators(*all);
    AddAttention(*all);
    AddRecurrences(*all);
    AddLosses(*all);
    return all;
  }();
  return operators;
}

const CollectiveOperators& AllCollectives() {
  static const CollectiveOperators& operators = *[] {
    auto* all = new CollectiveOperators;
    AddCollectives(*all);
    AddSplitLosses(*all);
    return all;
  }();
  return operators;
}

Call CallOf(const v1::Graph& graph, int node, const Tensors& tensors, const RunArguments& run) {
  Call call{.graph = graph,
            .node = graph.nodes(node),
            .run = run,
            .samples = graph.inputs().empty() ? 1 : tensors.at(graph.inputs(0).name()).shape.at(0)};
  for (const std::string& input : call.node.inputs()) call.inputs.push_back(&tensors.at(input));
  return call;
}

std::vector<std::vector<Tensor>> Outputs(absl::Span<const Call> ranks) {
  const std::string& name = ranks[0].node.op();
  const auto collective = AllCollectives().find(name);
  if (collective != AllCollectives().end()) return collective->second(ranks);
  const auto op = AllOperators().find(name);
  CHECK(op != AllOperators().end()) << name << " has no reference";
  std::vector<std::vector<Tensor>> outputs;
  for (const Call& call : ranks) outputs.push_back(op->second(call));
  return outputs;
}

}  // namespace

bool Call::has(absl::string_view attribute) const { return Find(node, attribute) != nullptr; }

int64_t Call::Integer(absl::string_view name, int64_t otherwise) const {
  const v1::Attribute* attribute = Find(node, name);
  return attribute == nullptr ? otherwise : attribute->i();
}

double Call::Number(absl::string_view name, double otherwise) const {
  const v1::Attribute* attribute = Find(node, name);
  return attribute == nullptr ? otherwise : attribute->f();
}

std::string Call::Word(absl::string_view name, absl::string_view otherwise) const {
  const v1::Attribute* attribute = Find(node, name);
  return attribute == nullptr ? std::string(otherwise) : attribute->s();
}

std::vector<int64_t> Call::Integers(absl::string_view name, std::vector<int64_t> otherwise) const {
  const v1::Attribute* attribute = Find(node, name);
  if (attribute == nullptr) return otherwise;
  return {attribute->integers().values().begin(), attribute->integers().values().end()};
}

std::vector<double> Call::Numbers(absl::string_view name) const {
  const v1::Attribute* attribute = Find(node, name);
  if (attribute == nullptr) return {};
  return {attribute->numbers().values().begin(), attribute->numbers().values().end()};
}

Tensors Evaluate(const v1::Graph& graph, const Tensors& given, const RunArguments& arguments) {
  return std::move(EvaluateRanks(absl::MakeConstSpan(&graph, 1), {given}, arguments)[0]);
}

std::vector<Tensors> EvaluateRanks(absl::Span<const v1::Graph> graphs, std::vector<Tensors> given,
                                   const RunArguments& arguments) {
  std::vector<Tensors> tensors = std::move(given);
  for (int i = 0; i < graphs[0].nodes_size(); ++i) {
    std::vector<Call> ranks;
    for (size_t rank = 0; rank < graphs.size(); ++rank) {
      CHECK_EQ(graphs[rank].nodes(i).op(), graphs[0].nodes(i).op());
      ranks.push_back(CallOf(graphs[rank], i, tensors[rank], arguments));
    }
    std::vector<std::vector<Tensor>> outputs = Outputs(ranks);
    for (size_t rank = 0; rank < graphs.size(); ++rank) {
      const v1::Node& node = graphs[rank].nodes(i);
      CHECK_EQ(outputs[rank].size(), node.outputs_size()) << node.ShortDebugString();
      for (int k = 0; k < node.outputs_size(); ++k) {
        tensors[rank][node.outputs(k)] = std::move(outputs[rank][k]);
      }
    }
  }
  return tensors;
}

}  // namespace muster::reference
