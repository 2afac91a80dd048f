// Nodes of an ONNX file whose inputs are all known are computed when the file is read: arithmetic
// with sizes, masks, positions, tables. By the definitions of ONNX's operators.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/graph/onnx/folded_value.h"
#include "lib/graph/onnx/onnx_file.h"
#include "proto/third_party/onnx/onnx.pb.h"

namespace muster {

// Whether nodes with the operator can be computed here.
bool IsFoldable(absl::string_view op_type);

// The node's outputs; an input that is left out is null. Floating results are rounded to f32.
// INVALID_ARGUMENT where the inputs do not fit or the result has more than 2^24 elements.
absl::StatusOr<std::vector<FoldedValue>> FoldNode(const onnx::NodeProto& node,
                                                  absl::Span<const FoldedValue* const> inputs,
                                                  const OnnxFile& file);

}  // namespace muster
