// Accessors for a node of an ONNX file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "proto/third_party/onnx/onnx.pb.h"

namespace muster {

// Returns the name for messages: the node's name, else that of its first output, else its operator.
std::string NameOf(const onnx::NodeProto& node);

inline bool HasInput(const onnx::NodeProto& node, int i) {
  return i < node.input_size() && !node.input(i).empty();
}
inline bool HasOutput(const onnx::NodeProto& node, int i) {
  return i < node.output_size() && !node.output(i).empty();
}

// Returns null if the node has no attribute of that name.
const onnx::AttributeProto* FindAttribute(const onnx::NodeProto& node, absl::string_view name);

// Return an attribute; the caller passes ONNX's default.
int64_t Integer(const onnx::NodeProto& node, absl::string_view name, int64_t otherwise);
double Number(const onnx::NodeProto& node, absl::string_view name, double otherwise);
std::string Word(const onnx::NodeProto& node, absl::string_view name, absl::string_view otherwise);
absl::optional<std::vector<int64_t>> Integers(const onnx::NodeProto& node, absl::string_view name);

// Returns INVALID_ARGUMENT, reason MODEL_INVALID: "node 'NAME' (OP) WHAT".
absl::Status NodeFault(const onnx::NodeProto& node, absl::string_view what);

}  // namespace muster
