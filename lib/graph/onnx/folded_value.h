// What is known of an ONNX value before anything runs: sizes, axes, masks, fillings.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"

namespace muster {

// A number, or a multiple of the number of samples that a run will have.
struct Extent {
  int64_t value = 0;
  bool of_batch = false;  // value * batch
  friend bool operator==(const Extent&, const Extent&) = default;
};

// A tensor of numbers. One whose elements are all the same needs only `fill`, and only such a one
// may have a dimension that is the batch.
struct FoldedValue {
  std::vector<Extent> shape;
  bool floating = false;
  std::vector<Extent> integers;  // elements when !floating
  std::vector<double> numbers;   // elements when floating
  absl::optional<double> fill;

  int64_t rank() const { return static_cast<int64_t>(shape.size()); }
  int64_t elements() const;  // without a batch dimension

  static FoldedValue Vector(std::vector<Extent> integers);
};

// Plain numbers; INVALID_ARGUMENT where one depends on the batch.
absl::StatusOr<std::vector<int64_t>> PlainIntegers(const FoldedValue& value);

// Element by element with numpy broadcasting: "Add", "Sub", "Mul", "Div", "Equal", "Less",
// "Greater", "And", "Or" ... INVALID_ARGUMENT where the result would depend on the batch in another
// way than as a multiple of it, or the op is not one of those.
absl::StatusOr<FoldedValue> FoldElementwise(absl::string_view op,
                                            absl::Span<const FoldedValue* const> inputs);
bool IsFoldedElementwise(absl::string_view op);

// y = x[..., index, ...] along `axis`.
absl::StatusOr<FoldedValue> FoldGather(const FoldedValue& x, const FoldedValue& index,
                                       int64_t axis);
absl::StatusOr<FoldedValue> FoldConcat(absl::Span<const FoldedValue* const> inputs, int64_t axis);
absl::StatusOr<FoldedValue> FoldSlice(const FoldedValue& x, absl::Span<const int64_t> axes,
                                      absl::Span<const int64_t> starts,
                                      absl::Span<const int64_t> ends,
                                      absl::Span<const int64_t> steps);
// The same elements in another shape.
absl::StatusOr<FoldedValue> FoldReshape(FoldedValue x, std::vector<Extent> shape);
absl::StatusOr<FoldedValue> FoldTranspose(const FoldedValue& x,
                                          absl::Span<const int64_t> permutation);
absl::StatusOr<FoldedValue> FoldExpand(const FoldedValue& x, const std::vector<Extent>& shape);

}  // namespace muster
