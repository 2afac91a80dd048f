#include "lib/graph/onnx/onnx_node.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {

using onnx::AttributeProto;
using onnx::NodeProto;

std::string NameOf(const NodeProto& node) {
  if (!node.name().empty()) return node.name();
  return node.output_size() > 0 ? node.output(0) : node.op_type();
}

const AttributeProto* FindAttribute(const NodeProto& node, absl::string_view name) {
  const auto found = std::ranges::find_if(
      node.attribute(), [&](const AttributeProto& attribute) { return attribute.name() == name; });
  return found == node.attribute().end() ? nullptr : &*found;
}

int64_t Integer(const NodeProto& node, absl::string_view name, int64_t otherwise) {
  const AttributeProto* attribute = FindAttribute(node, name);
  return attribute == nullptr ? otherwise : attribute->i();
}

double Number(const NodeProto& node, absl::string_view name, double otherwise) {
  const AttributeProto* attribute = FindAttribute(node, name);
  return attribute == nullptr ? otherwise : attribute->f();
}

std::string Word(const NodeProto& node, absl::string_view name, absl::string_view otherwise) {
  const AttributeProto* attribute = FindAttribute(node, name);
  return attribute == nullptr ? std::string(otherwise) : attribute->s();
}

absl::optional<std::vector<int64_t>> Integers(const NodeProto& node, absl::string_view name) {
  const AttributeProto* attribute = FindAttribute(node, name);
  if (attribute == nullptr) return absl::nullopt;
  return std::vector<int64_t>(attribute->ints().begin(), attribute->ints().end());
}

absl::Status NodeFault(const NodeProto& node, absl::string_view what) {
  return WithReason(absl::InvalidArgumentError(
                        absl::StrCat("node '", NameOf(node), "' (", node.op_type(), ") ", what)),
                    "MODEL_INVALID");
}

}  // namespace muster
