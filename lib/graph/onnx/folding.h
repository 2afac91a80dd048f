// Constant folding: computes nodes with known inputs when the file is read. These are arithmetic
// with sizes, masks, positions and tables, by the definitions of ONNX's operators.
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

// Limits the memory and work for the constants of one file, because a small file can ask for any
// amount.
class FoldBudget {
 public:
  static constexpr int64_t kNumbersMax = int64_t{1} << 27;     // 1 GiB
  static constexpr int64_t kOperationsMax = int64_t{1} << 32;  // about half a minute

  // Return INVALID_ARGUMENT once a limit is exceeded, and at every later call: "makes the file's
  // constants ...".
  absl::Status Keep(int64_t numbers);
  absl::Status Work(int64_t operations);

 private:
  absl::Status Check() const;

  int64_t numbers_ = 0;
  int64_t operations_ = 0;
};

// Returns whether nodes with this operator can be folded.
bool IsFoldable(absl::string_view op_type);

// Returns the node's outputs. An omitted input is null. Floating results are rounded to f32.
// Returns INVALID_ARGUMENT if the inputs do not fit, the result has more than 2^24 elements or 64
// dimensions, or the budget is exceeded.
absl::StatusOr<std::vector<FoldedValue>> FoldNode(const onnx::NodeProto& node,
                                                  absl::Span<const FoldedValue* const> inputs,
                                                  const OnnxFile& file, FoldBudget& budget);

}  // namespace muster
