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
  Tensors tensors = given;
  const int64_t samples =
      graph.inputs().empty() ? 1 : tensors.at(graph.inputs(0).name()).shape.at(0);
  for (const v1::Node& node : graph.nodes()) {
    const auto op = AllOperators().find(node.op());
    CHECK(op != AllOperators().end()) << node.op() << " has no reference";
    Call call{.graph = graph, .node = node, .run = arguments, .samples = samples};
    for (const std::string& input : node.inputs()) call.inputs.push_back(&tensors.at(input));

    std::vector<Tensor> outputs = op->second(call);

    CHECK_EQ(outputs.size(), node.outputs_size()) << node.ShortDebugString();
    for (int i = 0; i < node.outputs_size(); ++i) {
      tensors[node.outputs(i)] = std::move(outputs[i]);
    }
  }
  return tensors;
}

}  // namespace muster::reference
