// Nodes of an ONNX file whose inputs are all known are computed when the file is read: arithmetic
// with sizes, masks, positions, tables. By the definitions of ONNX's operators.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/graph/onnx/folded_value.h"
#include "lib/graph/onnx/onnx_file.h"
#include "proto/third_party/onnx/onnx.pb.h"

namespace muster {

// What the constants of one file may take together. A small file can ask for any amount.
class FoldBudget {
 public:
  static constexpr int64_t kNumbersMax = int64_t{1} << 27;     // 1 GiB of them
  static constexpr int64_t kOperationsMax = int64_t{1} << 32;  // half a minute

  // INVALID_ARGUMENT, here and from then on, once it is more: "makes the file's constants ...".
  absl::Status Keep(int64_t numbers);
  absl::Status Work(int64_t operations);

 private:
  absl::Status Check() const;

  int64_t numbers_ = 0;
  int64_t operations_ = 0;
};

// Whether nodes with the operator can be computed here.
bool IsFoldable(absl::string_view op_type);

// The node's outputs; an input that is left out is null. Floating results are rounded to f32.
// INVALID_ARGUMENT where the inputs do not fit, the result has more than 2^24 elements or 64
// dimensions, or the budget does not suffice.
absl::StatusOr<std::vector<FoldedValue>> FoldNode(const onnx::NodeProto& node,
                                                  absl::Span<const FoldedValue* const> inputs,
                                                  const OnnxFile& file, FoldBudget& budget);

}  // namespace muster
