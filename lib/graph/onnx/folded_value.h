// An ONNX value that is known before anything runs: sizes, axes, masks, positions.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace muster {

// The sizes of the batch for which every value is computed. If the results differ, the value
// depends on the batch, and the differences show how. The sizes are primes, so that results of a
// division by the batch are unlikely to look like a multiple of it.
inline constexpr int kProbes = 3;
inline constexpr std::array<int64_t, kProbes> kProbeBatch = {2, 3, 5};

// A size or number, or a multiple of the batch.
struct Extent {
  int64_t value = 0;
  bool of_batch = false;  // value * batch
  friend bool operator==(const Extent&, const Extent&) = default;
};

// Returns nullopt if the value depends on the batch in another way than as a multiple.
absl::optional<Extent> ExtentOf(const std::array<int64_t, kProbes>& at);

// Numbers in row-major order. Integers are exact up to 2^53; truth values are 0 and 1.
struct NumberArray {
  std::vector<int64_t> shape;
  std::vector<double> values;

  int64_t rank() const { return static_cast<int64_t>(shape.size()); }
  friend bool operator==(const NumberArray&, const NumberArray&) = default;
};

// Returns the number of elements, at most 2^40.
int64_t ElementsOf(const std::vector<int64_t>& shape);

// A known value, for all probes. Immutable; copies share their arrays.
class FoldedValue {
 public:
  // A value that does not depend on the batch.
  FoldedValue(bool floating, NumberArray array);
  // Calls `make` for each probe, or once if `depends` is false.
  static absl::StatusOr<FoldedValue> Make(
      bool floating, bool depends, absl::FunctionRef<absl::StatusOr<NumberArray>(int probe)> make);
  static FoldedValue Integer(int64_t value) { return {false, {{}, {static_cast<double>(value)}}}; }

  bool floating() const { return floating_; }
  const NumberArray& at(int probe) const { return *arrays_[probe]; }
  bool depends_on_batch() const { return arrays_[0] != arrays_[1]; }
  int64_t rank() const { return arrays_[0]->rank(); }
  int64_t numbers() const;  // the numbers that it holds, for all probes

  // Return INVALID_ARGUMENT for an extent that is neither constant nor a multiple of the batch.
  // Extents() also returns it for floating values.
  absl::StatusOr<std::vector<Extent>> Shape() const;
  absl::StatusOr<std::vector<Extent>> Extents() const;  // the extents that its elements give
  // Returns INVALID_ARGUMENT if an element is no integer or depends on the batch.
  absl::StatusOr<std::vector<int64_t>> PlainIntegers() const;
  // Returns the number that all elements have for every batch; nullopt if they differ or there is
  // none.
  absl::optional<double> Single() const;

 private:
  using Arrays = std::array<std::shared_ptr<const NumberArray>, kProbes>;
  FoldedValue(bool floating, Arrays arrays);

  bool floating_;
  Arrays arrays_;
};

// Truncates towards zero. Saturates if the double is beyond 64 bits; returns 0 for NaN.
int64_t ToInteger(double number);

}  // namespace muster
