// What is known of an ONNX value before anything runs: sizes, axes, masks, positions.
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

// Everything is worked out for three sizes of the batch: what differs between them depends on the
// batch, and how shows in the differences. Primes, so that no other size is a multiple by chance.
inline constexpr int kProbes = 3;
inline constexpr std::array<int64_t, kProbes> kProbeBatch = {2, 3, 5};

// A size or number, or so many for each sample of a run.
struct Extent {
  int64_t value = 0;
  bool of_batch = false;  // value * batch
  friend bool operator==(const Extent&, const Extent&) = default;
};

// nullopt where it depends on the batch in another way than as a multiple of it.
absl::optional<Extent> ExtentOf(const std::array<int64_t, kProbes>& at);

// Numbers in row-major order. Integers are exact up to 2^53; truth values are 0 and 1.
struct NumberArray {
  std::vector<int64_t> shape;
  std::vector<double> values;

  int64_t rank() const { return static_cast<int64_t>(shape.size()); }
  friend bool operator==(const NumberArray&, const NumberArray&) = default;
};

// 2^40 where there are more.
int64_t ElementsOf(const std::vector<int64_t>& shape);

// Immutable; copies share their arrays.
class FoldedValue {
 public:
  // The same whatever the batch is.
  FoldedValue(bool floating, NumberArray array);
  // `make` is called for each probe, once if `depends` is false.
  static absl::StatusOr<FoldedValue> Make(
      bool floating, bool depends, absl::FunctionRef<absl::StatusOr<NumberArray>(int probe)> make);
  static FoldedValue Integer(int64_t value) { return {false, {{}, {static_cast<double>(value)}}}; }

  bool floating() const { return floating_; }
  const NumberArray& at(int probe) const { return *arrays_[probe]; }
  bool depends_on_batch() const { return arrays_[0] != arrays_[1]; }
  int64_t rank() const { return arrays_[0]->rank(); }
  int64_t numbers() const;  // that it holds, those of all probes

  // INVALID_ARGUMENT for an extent that depends on the batch in an unusual way.
  absl::StatusOr<std::vector<Extent>> Shape() const;
  absl::StatusOr<std::vector<Extent>> Extents() const;  // of its elements
  // INVALID_ARGUMENT where an element is no integer or depends on the batch.
  absl::StatusOr<std::vector<int64_t>> PlainIntegers() const;
  // The one number that it holds: a value of one element, or a filling.
  absl::optional<double> Single() const;

 private:
  using Arrays = std::array<std::shared_ptr<const NumberArray>, kProbes>;
  FoldedValue(bool floating, Arrays arrays);

  bool floating_;
  Arrays arrays_;
};

// Saturates where a double is beyond 64 bits; 0 for NaN.
int64_t ToInteger(double number);

}  // namespace muster
