#include "lib/graph/onnx/folded_value.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {

int64_t ToInteger(double number) {
  if (std::isnan(number)) return 0;
  if (number >= 9.2e18) return std::numeric_limits<int64_t>::max();
  if (number <= -9.2e18) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(number);
}

int64_t ElementsOf(const std::vector<int64_t>& shape) {
  constexpr int64_t kMax = int64_t{1} << 40;
  int64_t elements = 1;
  for (int64_t size : shape) {
    if (size != 0 && std::abs(elements) > kMax / std::abs(size)) return kMax;
    elements *= size;
  }
  return elements;
}

absl::optional<Extent> ExtentOf(const std::array<int64_t, kProbes>& at) {
  if (std::ranges::all_of(at, [&](int64_t size) { return size == at[0]; })) return Extent{at[0]};
  const int64_t each = at[0] / kProbeBatch[0];
  for (int p = 0; p < kProbes; ++p) {
    if (at[p] != each * kProbeBatch[p]) return absl::nullopt;
  }
  return Extent{each, true};
}

FoldedValue::FoldedValue(bool floating, NumberArray array) : floating_(floating) {
  arrays_.fill(std::make_shared<const NumberArray>(std::move(array)));
}

FoldedValue::FoldedValue(bool floating, Arrays arrays)
    : floating_(floating), arrays_(std::move(arrays)) {
  // One array is enough if the batch does not matter. NaN never equals itself, so two NaNs count as
  // equal here.
  const auto same = [](const NumberArray& a, const NumberArray& b) {
    return a.shape == b.shape && std::ranges::equal(a.values, b.values, [](double x, double y) {
             return x == y || (std::isnan(x) && std::isnan(y));
           });
  };
  for (int p = 1; p < kProbes; ++p) {
    if (!same(*arrays_[0], *arrays_[p])) return;
  }
  arrays_.fill(arrays_[0]);
}

absl::StatusOr<FoldedValue> FoldedValue::Make(
    bool floating, bool depends, absl::FunctionRef<absl::StatusOr<NumberArray>(int probe)> make) {
  Arrays arrays;
  for (int p = 0; p < kProbes; ++p) {
    if (p > 0 && !depends) {
      arrays[p] = arrays[0];
      continue;
    }
    ASSIGN_OR_RETURN(NumberArray array, make(p));
    arrays[p] = std::make_shared<const NumberArray>(std::move(array));
  }
  return FoldedValue(floating, std::move(arrays));
}

int64_t FoldedValue::numbers() const {
  int64_t numbers = 0;
  for (int p = 0; p < (depends_on_batch() ? kProbes : 1); ++p) numbers += std::ssize(at(p).values);
  return numbers;
}

absl::StatusOr<std::vector<Extent>> FoldedValue::Shape() const {
  std::vector<Extent> shape;
  for (const auto& array : arrays_) {
    if (array->rank() != rank()) {
      return absl::InvalidArgumentError("has dimensions whose number depends on the batch");
    }
  }
  for (int64_t d = 0; d < rank(); ++d) {
    std::array<int64_t, kProbes> sizes;
    for (int p = 0; p < kProbes; ++p) sizes[p] = at(p).shape[d];
    const absl::optional<Extent> extent = ExtentOf(sizes);
    if (!extent)
      return absl::InvalidArgumentError("has a size that is not a multiple of the batch");
    shape.push_back(*extent);
  }
  return shape;
}

absl::StatusOr<std::vector<Extent>> FoldedValue::Extents() const {
  const size_t count = at(0).values.size();
  std::vector<Extent> extents;
  for (size_t i = 0; i < count; ++i) {
    std::array<int64_t, kProbes> numbers;
    for (int p = 0; p < kProbes; ++p) {
      if (floating_ || at(p).values.size() != count) {
        return absl::InvalidArgumentError("needs a list of sizes");
      }
      numbers[p] = ToInteger(at(p).values[i]);
    }
    const absl::optional<Extent> extent = ExtentOf(numbers);
    if (!extent)
      return absl::InvalidArgumentError("has a size that is not a multiple of the batch");
    extents.push_back(*extent);
  }
  return extents;
}

absl::StatusOr<std::vector<int64_t>> FoldedValue::PlainIntegers() const {
  if (floating_) return absl::InvalidArgumentError("needs plain integers");
  if (depends_on_batch()) {
    return absl::InvalidArgumentError("has a size that depends on the batch");
  }
  std::vector<int64_t> integers;
  for (double value : at(0).values) integers.push_back(ToInteger(value));
  return integers;
}

absl::optional<double> FoldedValue::Single() const {
  if (at(0).values.empty()) return absl::nullopt;
  const double first = at(0).values[0];
  for (int p = 0; p < kProbes; ++p) {
    if (!std::ranges::all_of(at(p).values, [&](double value) { return value == first; })) {
      return absl::nullopt;
    }
    if (!depends_on_batch()) break;
  }
  return first;
}

}  // namespace muster
