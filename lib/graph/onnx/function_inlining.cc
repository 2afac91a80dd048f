#include "lib/graph/onnx/function_inlining.h"

#include <string>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "lib/graph/onnx/onnx_node.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using onnx::AttributeProto;
using onnx::FunctionProto;
using onnx::GraphProto;
using onnx::NodeProto;
using Names = absl::flat_hash_map<std::string, std::string>;

constexpr int kDepthMax = 32;
constexpr int64_t kNodesMax = 1'000'000;
constexpr int64_t kBytesAddedMax = int64_t{256} << 20;

class Inliner {
 public:
  explicit Inliner(const onnx::ModelProto& model)
      : bytes_max_(static_cast<int64_t>(model.ByteSizeLong()) + kBytesAddedMax) {
    for (const FunctionProto& function : model.functions()) {
      functions_[Key(function.domain(), function.name(), function.overload())] = &function;
    }
  }

  absl::Status Inline(GraphProto& graph, int depth) {
    google::protobuf::RepeatedPtrField<NodeProto> nodes;
    nodes.Swap(graph.mutable_node());
    for (NodeProto& node : nodes) {
      RETURN_IF_ERROR(Append(std::move(node), depth, *graph.mutable_node()));
    }
    return absl::OkStatus();
  }

 private:
  using Key = std::tuple<std::string, std::string, std::string>;

  absl::Status Append(NodeProto node, int depth,
                      google::protobuf::RepeatedPtrField<NodeProto>& to) {
    for (AttributeProto& attribute : *node.mutable_attribute()) {
      if (attribute.has_g()) RETURN_IF_ERROR(Inline(*attribute.mutable_g(), depth));
    }
    bytes_ += static_cast<int64_t>(node.ByteSizeLong());
    if (++nodes_ > kNodesMax || bytes_ > bytes_max_) {
      return NodeFault(
          node, absl::StrCat("is one too many: with its functions written out where they are "
                             "called the file has over ",
                             kNodesMax, " nodes or ", bytes_max_,
                             " bytes: make large attributes of functions initialisers"));
    }
    const auto found = functions_.find(Key(node.domain(), node.op_type(), node.overload()));
    if (found == functions_.end()) {
      *to.Add() = std::move(node);
      return absl::OkStatus();
    }
    if (depth >= kDepthMax) return NodeFault(node, "calls functions without an end");
    return Call(*found->second, node, depth, to);
  }

  absl::Status Call(const FunctionProto& function, const NodeProto& call, int depth,
                    google::protobuf::RepeatedPtrField<NodeProto>& to) {
    const std::string prefix = absl::StrCat(NameOf(call), "/", ++calls_, "/");
    Names names;
    for (int i = 0; i < function.input_size(); ++i) {
      names[function.input(i)] = i < call.input_size() ? call.input(i) : "";
    }
    for (int i = 0; i < function.output_size(); ++i) {
      // If an output of the function is one of its inputs, an Identity copies it to the caller's
      // name of the output.
      if (names.contains(function.output(i))) {
        if (!HasOutput(call, i)) continue;
        NodeProto copy;
        copy.set_op_type("Identity");
        copy.set_name(absl::StrCat(prefix, "output", i));
        copy.add_input(names[function.output(i)]);
        copy.add_output(call.output(i));
        *to.Add() = std::move(copy);
      } else if (HasOutput(call, i)) {
        names[function.output(i)] = call.output(i);
      }
    }
    absl::flat_hash_map<std::string, const AttributeProto*> attributes;
    for (const AttributeProto& attribute : function.attribute_proto()) {
      attributes[attribute.name()] = &attribute;
    }
    for (const AttributeProto& attribute : call.attribute()) {
      attributes[attribute.name()] = &attribute;
    }
    for (NodeProto node : function.node()) {
      node.set_name(absl::StrCat(prefix, NameOf(node)));
      Rename(node, prefix, names, attributes);
      RETURN_IF_ERROR(Append(std::move(node), depth + 1, to));
    }
    return absl::OkStatus();
  }

  // Replaces names and attributes in a copy of a function's node by those of the caller.
  static void Rename(NodeProto& node, const std::string& prefix, Names& names,
                     const absl::flat_hash_map<std::string, const AttributeProto*>& attributes) {
    const auto rename = [&](std::string& name) {
      if (name.empty()) return;
      const auto [entry, added] = names.try_emplace(name, absl::StrCat(prefix, name));
      name = entry->second;
    };
    for (std::string& input : *node.mutable_input()) rename(input);
    for (std::string& output : *node.mutable_output()) rename(output);
    google::protobuf::RepeatedPtrField<AttributeProto> kept;
    for (AttributeProto& attribute : *node.mutable_attribute()) {
      if (!attribute.ref_attr_name().empty()) {
        // An attribute that the caller omits is omitted here too, so the operator's default
        // applies.
        const auto given = attributes.find(attribute.ref_attr_name());
        if (given == attributes.end()) continue;
        const std::string name = attribute.name();
        attribute = *given->second;
        attribute.set_name(name);
      }
      if (attribute.has_g()) {
        for (NodeProto& inner : *attribute.mutable_g()->mutable_node()) {
          Rename(inner, prefix, names, attributes);
        }
        for (onnx::ValueInfoProto& output : *attribute.mutable_g()->mutable_output()) {
          rename(*output.mutable_name());
        }
        for (onnx::TensorProto& tensor : *attribute.mutable_g()->mutable_initializer()) {
          rename(*tensor.mutable_name());
        }
      }
      *kept.Add() = std::move(attribute);
    }
    node.mutable_attribute()->Swap(&kept);
  }

  absl::flat_hash_map<Key, const FunctionProto*> functions_;
  // The most bytes of inlined nodes: the model's size and 256 MiB. If each function of a file is
  // called once, the file grows only by longer names.
  const int64_t bytes_max_;
  int64_t calls_ = 0;
  int64_t bytes_ = 0;
  int64_t nodes_ = 0;  // includes calls, so that functions which only call each other end
};

}  // namespace

absl::Status InlineFunctions(onnx::ModelProto& model) {
  if (model.functions_size() == 0) return absl::OkStatus();
  Inliner inliner(model);
  RETURN_IF_ERROR(inliner.Inline(*model.mutable_graph(), 0));
  model.clear_functions();
  return absl::OkStatus();
}

}  // namespace muster
