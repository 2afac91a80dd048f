#include "lib/graph/onnx/folded_value.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kElementsMax = int64_t{1} << 24;  // of what is computed here: masks, positions

absl::Status Invalid(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(what));
}

bool DependsOnBatch(absl::Span<const Extent> shape) {
  return std::ranges::any_of(shape, &Extent::of_batch);
}

// Sizes of a shape without batch.
std::vector<int64_t> Sizes(absl::Span<const Extent> shape) {
  std::vector<int64_t> sizes;
  for (const Extent& extent : shape) sizes.push_back(extent.value);
  return sizes;
}

// Positions in x of the elements of a view of `shape`, in order: `strides` says how far each
// dimension goes in x.
std::vector<int64_t> Positions(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides,
                               int64_t first) {
  std::vector<int64_t> positions = {first};
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<int64_t> next;
    next.reserve(positions.size() * shape[d]);
    for (int64_t position : positions) {
      for (int64_t i = 0; i < shape[d]; ++i) next.push_back(position + i * strides[d]);
    }
    positions = std::move(next);
  }
  return positions;
}

std::vector<int64_t> Strides(absl::Span<const int64_t> shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (int64_t d = std::ssize(shape) - 2; d >= 0; --d) strides[d] = strides[d + 1] * shape[d + 1];
  return strides;
}

// The elements of x at `positions`, in `shape`.
FoldedValue Pick(const FoldedValue& x, std::vector<Extent> shape,
                 const std::vector<int64_t>& positions) {
  FoldedValue y{.shape = std::move(shape), .floating = x.floating, .fill = x.fill};
  if (x.fill) return y;
  for (int64_t position : positions) {
    if (x.floating) {
      y.numbers.push_back(x.numbers[position]);
    } else {
      y.integers.push_back(x.integers[position]);
    }
  }
  return y;
}

std::vector<Extent> Plain(absl::Span<const int64_t> sizes) {
  std::vector<Extent> shape;
  for (int64_t size : sizes) shape.push_back({size});
  return shape;
}

// A fill without batch written out.
FoldedValue Listed(const FoldedValue& x) {
  if (!x.fill) return x;
  FoldedValue y{.shape = x.shape, .floating = x.floating};
  if (x.floating) {
    y.numbers.assign(x.elements(), *x.fill);
  } else {
    y.integers.assign(x.elements(), {static_cast<int64_t>(*x.fill)});
  }
  return y;
}

absl::StatusOr<Extent> Combine(absl::string_view op, Extent a, Extent b) {
  if (op == "Add" && a.of_batch == b.of_batch) return Extent{a.value + b.value, a.of_batch};
  if (op == "Sub" && a.of_batch == b.of_batch) return Extent{a.value - b.value, a.of_batch};
  if (op == "Mul" && !(a.of_batch && b.of_batch)) {
    return Extent{a.value * b.value, a.of_batch || b.of_batch};
  }
  if (op == "Div" && b.value != 0) {
    if (a.of_batch == b.of_batch && (!a.of_batch || a.value % b.value == 0)) {
      return Extent{a.value / b.value};
    }
    if (a.of_batch && !b.of_batch && a.value % b.value == 0) {
      return Extent{a.value / b.value, true};
    }
  }
  // A size is never what -1 or 0 ask about, whatever the batch.
  if (op == "Equal" && (a.of_batch == b.of_batch || (a.value > 0 && b.value <= 0) ||
                        (b.value > 0 && a.value <= 0))) {
    return Extent{a == b};
  }
  if (!a.of_batch && !b.of_batch) {
    if (op == "Less") return Extent{a.value < b.value};
    if (op == "LessOrEqual") return Extent{a.value <= b.value};
    if (op == "Greater") return Extent{a.value > b.value};
    if (op == "GreaterOrEqual") return Extent{a.value >= b.value};
    if (op == "And") return Extent{a.value != 0 && b.value != 0};
    if (op == "Or") return Extent{a.value != 0 || b.value != 0};
    if (op == "Max") return Extent{std::max(a.value, b.value)};
    if (op == "Min") return Extent{std::min(a.value, b.value)};
    if (op == "Pow") return Extent{static_cast<int64_t>(std::pow(a.value, b.value))};
  }
  return Invalid("computes with the batch size in a way that is not understood");
}

double Combine(absl::string_view op, double a, double b) {
  if (op == "Add") return a + b;
  if (op == "Sub") return a - b;
  if (op == "Mul") return a * b;
  if (op == "Div") return a / b;
  if (op == "Pow") return std::pow(a, b);
  if (op == "Max") return std::max(a, b);
  if (op == "Min") return std::min(a, b);
  if (op == "Equal") return a == b;
  if (op == "Less") return a < b;
  if (op == "LessOrEqual") return a <= b;
  if (op == "Greater") return a > b;
  return a >= b;
}

bool IsComparison(absl::string_view op) {
  return op == "Equal" || op == "Less" || op == "LessOrEqual" || op == "Greater" ||
         op == "GreaterOrEqual";
}

// numpy broadcasting of two shapes without batch.
absl::StatusOr<std::vector<int64_t>> BroadcastSizes(std::vector<int64_t> a,
                                                    std::vector<int64_t> b) {
  if (a.size() < b.size()) std::swap(a, b);
  b.insert(b.begin(), a.size() - b.size(), 1);
  for (size_t d = 0; d < a.size(); ++d) {
    if (a[d] != b[d] && a[d] != 1 && b[d] != 1) return Invalid("has shapes that do not broadcast");
    if (a[d] == 1) a[d] = b[d];
  }
  return a;
}

// x repeated to `sizes`.
FoldedValue Repeat(const FoldedValue& x, const std::vector<int64_t>& sizes) {
  const std::vector<int64_t> own = Sizes(x.shape);
  std::vector<int64_t> strides = Strides(own);
  for (size_t d = 0; d < own.size(); ++d) {
    if (own[d] == 1) strides[d] = 0;
  }
  strides.insert(strides.begin(), sizes.size() - own.size(), 0);
  return Pick(x, Plain(sizes), Positions(sizes, strides, 0));
}

}  // namespace

int64_t FoldedValue::elements() const {
  int64_t elements = 1;
  for (const Extent& extent : shape) elements *= extent.value;
  return elements;
}

FoldedValue FoldedValue::Vector(std::vector<Extent> integers) {
  const auto size = static_cast<int64_t>(integers.size());
  return {.shape = {{size}}, .integers = std::move(integers)};
}

absl::StatusOr<std::vector<int64_t>> PlainIntegers(const FoldedValue& value) {
  if (value.floating || DependsOnBatch(value.shape)) return Invalid("needs plain integers");
  const FoldedValue listed = Listed(value);
  std::vector<int64_t> integers;
  for (const Extent& extent : listed.integers) {
    if (extent.of_batch) return Invalid("has a size that depends on the batch");
    integers.push_back(extent.value);
  }
  return integers;
}

bool IsFoldedElementwise(absl::string_view op) {
  static const auto& known = *new absl::flat_hash_map<absl::string_view, int>{
      {"Add", 2},     {"Sub", 2},         {"Mul", 2},   {"Div", 2},
      {"Pow", 2},     {"Max", 2},         {"Min", 2},   {"Equal", 2},
      {"Less", 2},    {"LessOrEqual", 2}, {"And", 2},   {"Or", 2},
      {"Greater", 2}, {"Not", 1},         {"Neg", 1},   {"GreaterOrEqual", 2},
      {"Sqrt", 1},    {"Where", 3},       {"Floor", 1}, {"Ceil", 1}};
  return known.contains(op);
}

absl::StatusOr<FoldedValue> FoldElementwise(absl::string_view op,
                                            absl::Span<const FoldedValue* const> inputs) {
  std::vector<int64_t> sizes;
  for (const FoldedValue* input : inputs) {
    if (DependsOnBatch(input->shape)) {
      // A filling of the batch's size through one step: enough for "zeros like".
      if (inputs.size() == 1 && input->fill && op == "Neg") {
        FoldedValue negated = *input;
        negated.fill = -*input->fill;
        return negated;
      }
      return Invalid("computes with a constant of the batch's size");
    }
    ASSIGN_OR_RETURN(sizes, BroadcastSizes(std::move(sizes), Sizes(input->shape)));
  }
  int64_t elements = 1;
  for (int64_t size : sizes) elements *= size;
  if (elements > kElementsMax) return Invalid("makes a constant that is too large");
  std::vector<FoldedValue> in;
  for (const FoldedValue* input : inputs) in.push_back(Repeat(Listed(*input), sizes));

  FoldedValue y{.shape = Plain(sizes)};
  if (op == "Where") {
    y.floating = in[1].floating || in[2].floating;
    for (int64_t i = 0; i < elements; ++i) {
      const FoldedValue& from = in[in[0].integers[i].value != 0 ? 1 : 2];
      if (y.floating) {
        y.numbers.push_back(from.floating ? from.numbers[i]
                                          : static_cast<double>(from.integers[i].value));
      } else {
        y.integers.push_back(from.integers[i]);
      }
    }
    return y;
  }
  const bool floating = in[0].floating;
  y.floating = floating && !IsComparison(op);
  for (int64_t i = 0; i < elements; ++i) {
    if (in.size() == 1) {
      if (op == "Not") {
        y.integers.push_back({in[0].integers[i].value == 0});
      } else if (!floating) {
        y.integers.push_back({op == "Neg" ? -in[0].integers[i].value : in[0].integers[i].value});
      } else {
        const double x = in[0].numbers[i];
        y.numbers.push_back(op == "Neg"    ? -x
                            : op == "Sqrt" ? std::sqrt(x)
                            : op == "Ceil" ? std::ceil(x)
                                           : std::floor(x));
      }
    } else if (!floating) {
      ASSIGN_OR_RETURN(const Extent extent, Combine(op, in[0].integers[i], in[1].integers[i]));
      y.integers.push_back(extent);
    } else {
      const double number = Combine(op, in[0].numbers[i], in[1].numbers[i]);
      if (IsComparison(op)) {
        y.integers.push_back({number != 0});
      } else {
        y.numbers.push_back(number);
      }
    }
  }
  return y;
}

absl::StatusOr<FoldedValue> FoldGather(const FoldedValue& x, const FoldedValue& index,
                                       int64_t axis) {
  if (DependsOnBatch(x.shape) || DependsOnBatch(index.shape)) {
    return Invalid("picks from a constant of the batch's size");
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> picks, PlainIntegers(index));
  const std::vector<int64_t> sizes = Sizes(x.shape);
  if (axis < 0) axis += x.rank();
  if (axis < 0 || axis >= x.rank()) return Invalid("has an axis outside its input");
  const std::vector<int64_t> strides = Strides(sizes);
  std::vector<int64_t> positions = {0};
  std::vector<Extent> shape;
  for (int64_t d = 0; d < x.rank(); ++d) {
    std::vector<int64_t> next;
    for (int64_t position : positions) {
      if (d != axis) {
        for (int64_t i = 0; i < sizes[d]; ++i) next.push_back(position + i * strides[d]);
        continue;
      }
      for (int64_t pick : picks) {
        const int64_t i = pick < 0 ? pick + sizes[d] : pick;
        if (i < 0 || i >= sizes[d]) return Invalid("picks an element outside its input");
        next.push_back(position + i * strides[d]);
      }
    }
    positions = std::move(next);
    if (d == axis) {
      shape.insert(shape.end(), index.shape.begin(), index.shape.end());
    } else {
      shape.push_back({sizes[d]});
    }
  }
  return Pick(x, std::move(shape), positions);
}

absl::StatusOr<FoldedValue> FoldConcat(absl::Span<const FoldedValue* const> inputs, int64_t axis) {
  FoldedValue y = Listed(*inputs.front());
  if (DependsOnBatch(y.shape)) return Invalid("joins constants of the batch's size");
  if (axis < 0) axis += y.rank();
  if (axis < 0 || axis >= y.rank()) return Invalid("has an axis outside its inputs");
  int64_t outer = 1;
  for (int64_t d = 0; d < axis; ++d) outer *= y.shape[d].value;
  for (const FoldedValue* input : inputs.subspan(1)) {
    if (DependsOnBatch(input->shape) || input->rank() != y.rank() ||
        input->floating != y.floating || outer == 0) {
      return Invalid("joins constants that do not fit");
    }
    const FoldedValue x = Listed(*input);
    const int64_t own = y.elements() / outer, added = x.elements() / outer;
    FoldedValue joined{.shape = y.shape, .floating = y.floating};
    joined.shape[axis].value += x.shape[axis].value;
    for (int64_t o = 0; o < outer; ++o) {
      auto append = [&](auto& to, const auto& a, const auto& b) {
        to.insert(to.end(), a.begin() + o * own, a.begin() + (o + 1) * own);
        to.insert(to.end(), b.begin() + o * added, b.begin() + (o + 1) * added);
      };
      if (y.floating) {
        append(joined.numbers, y.numbers, x.numbers);
      } else {
        append(joined.integers, y.integers, x.integers);
      }
    }
    y = std::move(joined);
  }
  return y;
}

absl::StatusOr<FoldedValue> FoldSlice(const FoldedValue& x, absl::Span<const int64_t> axes,
                                      absl::Span<const int64_t> starts,
                                      absl::Span<const int64_t> ends,
                                      absl::Span<const int64_t> steps) {
  if (DependsOnBatch(x.shape)) return Invalid("cuts a constant of the batch's size");
  std::vector<int64_t> sizes = Sizes(x.shape);
  std::vector<int64_t> strides = Strides(sizes);
  int64_t first = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = axes[i] < 0 ? axes[i] + x.rank() : axes[i];
    if (axis < 0 || axis >= x.rank() || steps[i] == 0) return Invalid("has an impossible slice");
    const int64_t size = sizes[axis], step = steps[i];
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
    const auto clamp = [&](int64_t at) { return std::clamp(at < 0 ? at + size : at, low, high); };
    const int64_t begin = clamp(starts[i]), end = clamp(ends[i]);
    sizes[axis] = std::max<int64_t>(0, (end - begin + step - (step > 0 ? 1 : -1)) / step);
    first += begin * strides[axis];
    strides[axis] *= step;
  }
  return Pick(x, Plain(sizes), Positions(sizes, strides, first));
}

absl::StatusOr<FoldedValue> FoldReshape(FoldedValue x, std::vector<Extent> shape) {
  if (!x.fill) {
    int64_t elements = 1;
    for (const Extent& extent : shape) elements *= extent.value;
    if (DependsOnBatch(shape) || elements != x.elements()) {
      return Invalid("reshapes a constant to what it does not have");
    }
  }
  x.shape = std::move(shape);
  return x;
}

absl::StatusOr<FoldedValue> FoldTranspose(const FoldedValue& x,
                                          absl::Span<const int64_t> permutation) {
  if (DependsOnBatch(x.shape)) return Invalid("transposes a constant of the batch's size");
  const std::vector<int64_t> sizes = Sizes(x.shape), strides = Strides(sizes);
  std::vector<int64_t> new_sizes, new_strides;
  for (int64_t d : permutation) {
    if (d < 0 || d >= x.rank()) return Invalid("has an impossible permutation");
    new_sizes.push_back(sizes[d]);
    new_strides.push_back(strides[d]);
  }
  return Pick(x, Plain(new_sizes), Positions(new_sizes, new_strides, 0));
}

absl::StatusOr<FoldedValue> FoldExpand(const FoldedValue& x, const std::vector<Extent>& shape) {
  if (x.fill || x.elements() == 1) {
    FoldedValue y{.shape = shape, .floating = x.floating, .fill = x.fill};
    if (!y.fill) {
      if (!x.floating && x.integers[0].of_batch) return Invalid("repeats the batch size");
      y.fill = x.floating ? x.numbers[0] : static_cast<double>(x.integers[0].value);
    }
    return y;
  }
  // Along the batch a constant repeats by broadcasting where it is used.
  std::vector<int64_t> sizes;
  for (const Extent& extent : shape) sizes.push_back(extent.of_batch ? 1 : extent.value);
  ASSIGN_OR_RETURN(sizes, BroadcastSizes(std::move(sizes), Sizes(x.shape)));
  return Repeat(x, sizes);
}

}  // namespace muster
