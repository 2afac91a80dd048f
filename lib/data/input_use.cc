#include "lib/data/input_use.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "lib/graph/shape_inference.h"

namespace muster {
namespace {

// Returns whether the op only rearranges the values of its input.
bool OnlyRearranges(absl::string_view op) {
  static const auto* const kOps = new absl::flat_hash_set<absl::string_view>{
      "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand"};
  return kOps->contains(op);
}

std::optional<int64_t> IntegerAttribute(const v1::Node& node, const std::string& name) {
  const auto attribute = node.attributes().find(name);
  if (attribute == node.attributes().end()) return std::nullopt;
  return attribute->second.i();
}

void Bound(InputUse& use, int64_t lowest, int64_t limit) {
  use.lowest = std::max(use.lowest, lowest);
  use.limit = std::min(use.limit, limit);
}

// The type of the node's input `index`; null if it is not known.
const TensorType* TypeOfInput(const TensorTypes& types, const v1::Node& node, int index) {
  if (index >= node.inputs_size()) return nullptr;
  const auto type = types.find(node.inputs(index));
  return type == types.end() || type->second.shape.empty() ? nullptr : &type->second;
}

void NoteUse(const v1::Node& node, int operand, const TensorTypes& types, InputUse& use) {
  const absl::string_view op = node.op();
  if (op == "Embedding" && operand == 0) {
    if (const TensorType* table = TypeOfInput(types, node, 1)) Bound(use, 0, table->shape[0]);
  } else if ((op == "Gather" || op == "GatherElements" || op == "ScatterElements") &&
             operand == 1) {
    const TensorType* from = TypeOfInput(types, node, 0);
    if (from == nullptr) return;
    const auto rank = static_cast<int64_t>(from->shape.size());
    int64_t axis = IntegerAttribute(node, "axis").value_or(0);
    if (axis < 0) axis += rank;
    if (axis < 0 || axis >= rank) return;
    Bound(use, -from->shape[axis], from->shape[axis]);
  } else if (op == "SoftmaxCrossEntropy" && operand == 1) {
    if (const TensorType* logits = TypeOfInput(types, node, 0)) {
      Bound(use, 0, logits->shape.back());
    }
    use.ignore_index = IntegerAttribute(node, "ignore_index");
  } else if (op == "SigmoidCrossEntropy" && operand == 1) {
    use.is_probability = true;
  } else if (op == "CorrectCount" && operand == 1) {
    use.is_label = true;
  }
}

}  // namespace

std::string ToText(const InputUse& use) {
  if (use.is_probability) return "0 to 1";
  if (!use.is_bounded()) return "";
  return absl::StrCat(use.lowest, " to ", use.limit - 1,
                      use.ignore_index ? absl::StrCat(", ", *use.ignore_index, " is ignored") : "");
}

std::vector<InputUse> UsesOfInputs(const v1::Graph& graph) {
  std::vector<InputUse> uses(graph.inputs_size());
  const absl::StatusOr<TensorTypes> types = InferTypes(graph, /*batch=*/1);
  if (!types.ok()) return uses;  // running the graph reports the error
  absl::flat_hash_map<std::string, int>
      input_of;  // tensor -> the graph input that it has the values of
  for (int i = 0; i < graph.inputs_size(); ++i) input_of[graph.inputs(i).name()] = i;
  for (const v1::Node& node : graph.nodes()) {
    for (int operand = 0; operand < node.inputs_size(); ++operand) {
      const auto input = input_of.find(node.inputs(operand));
      if (input == input_of.end()) continue;
      const int index = input->second;
      NoteUse(node, operand, *types, uses[index]);
      if (operand == 0 && OnlyRearranges(node.op()) && node.outputs_size() > 0) {
        input_of[node.outputs(0)] = index;
      }
    }
  }
  return uses;
}

int64_t CountTargets(const InputUse& use, absl::Span<const std::byte> rows) {
  CHECK(use.ignore_index.has_value());
  int64_t counted = 0;
  for (size_t at = 0; at < rows.size(); at += sizeof(int32_t)) {
    int32_t id;
    std::memcpy(&id, rows.data() + at, sizeof(id));
    counted += id != *use.ignore_index;
  }
  return counted;
}

}  // namespace muster
