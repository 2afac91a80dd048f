#include "lib/graph/onnx/folding.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/graph/onnx/onnx_node.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using onnx::NodeProto;
using onnx::TensorProto;
using Shape = std::vector<int64_t>;

constexpr int64_t kElementsMax = int64_t{1} << 24;
constexpr int64_t kDimensionsMax = 64;  // numpy's limit
// The most elements of a shape, if a size of 0 counts as 1.
constexpr int64_t kPlacesMax = int64_t{1} << 40;

struct Result {
  bool floating;
  NumberArray array;
};
using Results = absl::StatusOr<std::vector<Result>>;

// A node and its inputs, for one size of the batch.
struct Call {
  const NodeProto& node;
  const OnnxFile& file;
  std::vector<const NumberArray*> in;  // null: omitted
  std::vector<bool> floating;          // whether each input is floating
  FoldBudget& budget;

  bool Has(size_t i) const { return i < in.size() && in[i] != nullptr; }
};

absl::Status CannotFold(absl::string_view what) { return absl::InvalidArgumentError(what); }

// Checks the sizes and the number of dimensions. The product of the sizes that are not 0
// must not overflow: [2^62, 2^62, 0] has no elements, but is refused.
absl::Status CheckShape(const Shape& shape) {
  int64_t places = 1;
  for (int64_t size : shape) {
    if (size < 0 || size > kPlacesMax / places)
      return CannotFold("has a constant of impossible size");
    places *= std::max<int64_t>(size, 1);
  }
  if (std::ssize(shape) <= kDimensionsMax) return absl::OkStatus();
  return CannotFold(absl::StrCat("has a constant of ", shape.size(), " dimensions, at most ",
                                 kDimensionsMax, " are possible"));
}

bool HasAll(const Call& call) {
  return std::ranges::all_of(call.in, [](const NumberArray* input) { return input != nullptr; });
}

// Returns the first number of input i.
absl::StatusOr<double> First(const Call& call, size_t i) {
  if (!call.Has(i) || call.in[i]->values.empty())
    return CannotFold(absl::StrCat("has no input ", i));
  return call.in[i]->values[0];
}

Results One(bool floating, NumberArray array) {
  std::vector<Result> results;
  results.push_back({floating, std::move(array)});
  return results;
}

Shape Strides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (int64_t d = std::ssize(shape) - 2; d >= 0; --d) strides[d] = strides[d + 1] * shape[d + 1];
  return strides;
}

// Calls `at` with the position of each element of a view of `shape`, in order. `strides` has the
// step of each dimension.
void ForEachPosition(const Shape& shape, const Shape& strides, int64_t first,
                     absl::FunctionRef<void(int64_t)> at) {
  if (ElementsOf(shape) == 0) return;
  Shape index(shape.size(), 0);
  int64_t position = first;
  while (true) {
    at(position);
    int64_t d = std::ssize(shape) - 1;
    for (; d >= 0; --d) {
      position += strides[d];
      if (++index[d] < shape[d]) break;
      position -= strides[d] * shape[d];
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

// Returns the elements of a view of x, in order.
NumberArray View(const NumberArray& x, Shape shape, const Shape& strides, int64_t first = 0) {
  NumberArray y{.shape = std::move(shape)};
  y.values.reserve(ElementsOf(y.shape));
  ForEachPosition(y.shape, strides, first, [&](int64_t at) { y.values.push_back(x.values[at]); });
  return y;
}

absl::StatusOr<Shape> Broadcast(Shape a, Shape b) {
  if (a.size() < b.size()) std::swap(a, b);
  b.insert(b.begin(), a.size() - b.size(), 1);
  for (size_t d = 0; d < a.size(); ++d) {
    if (a[d] < 0 || b[d] < 0) return CannotFold("has a negative size");
    if (a[d] != b[d] && a[d] != 1 && b[d] != 1)
      return CannotFold("has shapes that do not broadcast");
    if (a[d] == 1) a[d] = b[d];
  }
  if (ElementsOf(a) > kElementsMax) return CannotFold("makes a constant that is too large");
  RETURN_IF_ERROR(CheckShape(a));
  return a;
}

NumberArray Repeat(const NumberArray& x, const Shape& shape) {
  if (x.shape == shape) return x;
  Shape strides = Strides(x.shape);
  for (size_t d = 0; d < strides.size(); ++d) {
    if (x.shape[d] == 1) strides[d] = 0;
  }
  strides.insert(strides.begin(), shape.size() - strides.size(), 0);
  return View(x, shape, strides);
}

absl::StatusOr<int64_t> Axis(int64_t axis, int64_t rank) {
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= rank) return CannotFold("has an axis outside its input");
  return axis;
}

// Returns the axes in order; each may occur once.
absl::StatusOr<Shape> Axes(Shape axes, int64_t rank) {
  for (int64_t& axis : axes) {
    ASSIGN_OR_RETURN(axis, Axis(axis, rank));
  }
  std::ranges::sort(axes);
  if (std::ranges::adjacent_find(axes) != axes.end()) return CannotFold("names a dimension twice");
  return axes;
}

Shape Listed(const NumberArray& array) {
  Shape list;
  for (double value : array.values) list.push_back(ToInteger(value));
  return list;
}

// Returns the integers of input i if there is one, otherwise the attribute of older opsets.
absl::optional<Shape> List(const Call& call, size_t i, absl::string_view name) {
  if (call.Has(i)) return Listed(*call.in[i]);
  return Integers(call.node, name);
}

// ---------------------------------------------------------------- constants

absl::StatusOr<Result> FromTensor(const OnnxFile& file, const TensorProto& tensor) {
  Result result{.floating = IsFloating(tensor.data_type())};
  result.array.shape.assign(tensor.dims().begin(), tensor.dims().end());
  if (ElementsOf(tensor) == 0) return result;
  if (ElementsOf(tensor) > kElementsMax) return CannotFold("holds a constant that is too large");
  if (result.floating) {
    ASSIGN_OR_RETURN(const std::vector<float> numbers, file.Floats(tensor));
    result.array.values.assign(numbers.begin(), numbers.end());
  } else {
    ASSIGN_OR_RETURN(const std::vector<int64_t> integers, file.Integers(tensor));
    result.array.values.assign(integers.begin(), integers.end());
  }
  return result;
}

Results Constant(const Call& call) {
  if (call.node.attribute_size() != 1) return CannotFold("holds more or less than one value");
  const onnx::AttributeProto& attribute = call.node.attribute(0);
  if (attribute.name() == "value") {
    ASSIGN_OR_RETURN(Result result, FromTensor(call.file, attribute.t()));
    return One(result.floating, std::move(result.array));
  }
  if (attribute.name() == "value_int") {
    return One(false, {{}, {static_cast<double>(attribute.i())}});
  }
  if (attribute.name() == "value_float") return One(true, {{}, {attribute.f()}});
  if (attribute.name() == "value_ints") {
    return One(false,
               {{attribute.ints_size()}, {attribute.ints().begin(), attribute.ints().end()}});
  }
  if (attribute.name() == "value_floats") {
    return One(true,
               {{attribute.floats_size()}, {attribute.floats().begin(), attribute.floats().end()}});
  }
  return CannotFold(absl::StrCat("holds a '", attribute.name(), "'"));
}

Results ConstantOfShape(const Call& call) {
  Result value{.floating = true, .array = {{1}, {0}}};
  if (const onnx::AttributeProto* attribute = FindAttribute(call.node, "value")) {
    ASSIGN_OR_RETURN(value, FromTensor(call.file, attribute->t()));
    if (value.array.values.empty()) return CannotFold("fills with nothing");
  }
  const Shape shape = Listed(*call.in[0]);
  if (std::ranges::any_of(shape, [](int64_t size) { return size < 0; }) ||
      ElementsOf(shape) > kElementsMax) {
    return CannotFold("has an impossible size");
  }
  NumberArray y{.shape = shape};
  y.values.assign(ElementsOf(shape), value.array.values[0]);
  return One(value.floating, std::move(y));
}

Results Range(const Call& call) {
  ASSIGN_OR_RETURN(const double start, First(call, 0));
  ASSIGN_OR_RETURN(const double limit, First(call, 1));
  ASSIGN_OR_RETURN(const double step, First(call, 2));
  const double count = std::max(0.0, std::ceil((limit - start) / step));
  if (!(count <= kElementsMax)) return CannotFold("has impossible bounds");
  NumberArray y{.shape = {static_cast<int64_t>(count)}};
  for (int64_t i = 0; i < y.shape[0]; ++i)
    y.values.push_back(start + static_cast<double>(i) * step);
  return One(call.floating[0], std::move(y));
}

Results EyeLike(const Call& call) {
  NumberArray y = *call.in[0];
  if (y.rank() != 2) return CannotFold("needs a matrix");
  const int64_t diagonal = Integer(call.node, "k", 0);
  for (int64_t i = 0; i < std::ssize(y.values); ++i) {
    y.values[i] = i % y.shape[1] - i / y.shape[1] == diagonal;
  }
  const int64_t type = Integer(call.node, "dtype", call.floating[0] ? 1 : 7);
  return One(IsFloating(static_cast<int32_t>(type)), std::move(y));
}

// Returns `value` converted to `type`. ONNX drops the higher bits of an integer that does not fit,
// like numpy's astype. It defines nothing for floats that do not fit: here they saturate at 64
// bits, and are then treated as integers.
double WithinType(double value, int32_t type) {
  switch (type) {
    case TensorProto::BOOL:
      return value != 0;
    case TensorProto::INT8:
      return static_cast<int8_t>(ToInteger(value));
    case TensorProto::UINT8:
      return static_cast<uint8_t>(ToInteger(value));
    case TensorProto::INT32:
      return static_cast<int32_t>(ToInteger(value));
    default:
      return static_cast<double>(ToInteger(value));
  }
}

NumberArray CastTo(const NumberArray& x, int32_t type) {
  NumberArray y = x;
  if (IsFloating(type)) return y;
  for (double& value : y.values) value = WithinType(value, type);
  return y;
}

Results Cast(const Call& call) {
  const auto type = static_cast<int32_t>(Integer(call.node, "to", TensorProto::FLOAT));
  return One(IsFloating(type), CastTo(*call.in[0], type));
}

Results CastLike(const Call& call) {
  const bool floating = call.floating[1];
  return One(floating, CastTo(*call.in[0], floating ? TensorProto::FLOAT : TensorProto::INT64));
}

// ---------------------------------------------------------------- elementwise

double Sign(double x) { return (x > 0) - (x < 0); }

// The modulo of Python and of ONNX (fmod = 0): the result has the divisor's sign.
double FloorMod(double a, double b) { return b == 0 ? 0 : a - b * std::floor(a / b); }

using UnaryFunction = double (*)(double);

UnaryFunction FindUnary(absl::string_view op) {
  static const auto& functions = *new absl::flat_hash_map<absl::string_view, UnaryFunction>{
      {"Abs", [](double x) { return std::abs(x); }},
      {"Ceil", [](double x) { return std::ceil(x); }},
      {"Cos", [](double x) { return std::cos(x); }},
      {"Erf", [](double x) { return std::erf(x); }},
      {"Exp", [](double x) { return std::exp(x); }},
      {"Floor", [](double x) { return std::floor(x); }},
      {"Identity", [](double x) { return x; }},
      {"IsInf", [](double x) { return std::isinf(x) ? 1.0 : 0.0; }},
      {"IsNaN", [](double x) { return std::isnan(x) ? 1.0 : 0.0; }},
      {"Log", [](double x) { return std::log(x); }},
      {"Neg", [](double x) { return -x; }},
      {"Not", [](double x) { return x == 0 ? 1.0 : 0.0; }},
      {"Reciprocal", [](double x) { return 1 / x; }},
      {"Relu", [](double x) { return std::max(x, 0.0); }},
      {"Round", [](double x) { return std::nearbyint(x); }},
      {"Sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }},
      {"Sign", Sign},
      {"Sin", [](double x) { return std::sin(x); }},
      {"Softplus", [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }},
      {"Sqrt", [](double x) { return std::sqrt(x); }},
      {"Tanh", [](double x) { return std::tanh(x); }},
  };
  const auto found = functions.find(op);
  return found == functions.end() ? nullptr : found->second;
}

Results Unary(const Call& call) {
  const absl::string_view op = call.node.op_type();
  NumberArray y = *call.in[0];
  const UnaryFunction function = FindUnary(op);
  for (double& value : y.values) value = function(value);
  const bool truth = op == "Not" || op == "IsNaN" || op == "IsInf";
  return One(call.floating[0] && !truth, std::move(y));
}

using BinaryFunction = double (*)(double, double);

BinaryFunction FindBinary(absl::string_view op) {
  static const auto& functions = *new absl::flat_hash_map<absl::string_view, BinaryFunction>{
      {"Add", [](double a, double b) { return a + b; }},
      {"And", [](double a, double b) { return a != 0 && b != 0 ? 1.0 : 0.0; }},
      {"BitwiseAnd",
       [](double a, double b) { return static_cast<double>(ToInteger(a) & ToInteger(b)); }},
      {"BitwiseOr",
       [](double a, double b) { return static_cast<double>(ToInteger(a) | ToInteger(b)); }},
      {"Div", [](double a, double b) { return a / b; }},
      {"Equal", [](double a, double b) { return a == b ? 1.0 : 0.0; }},
      {"Greater", [](double a, double b) { return a > b ? 1.0 : 0.0; }},
      {"GreaterOrEqual", [](double a, double b) { return a >= b ? 1.0 : 0.0; }},
      {"Less", [](double a, double b) { return a < b ? 1.0 : 0.0; }},
      {"LessOrEqual", [](double a, double b) { return a <= b ? 1.0 : 0.0; }},
      {"Max", [](double a, double b) { return std::max(a, b); }},
      {"Min", [](double a, double b) { return std::min(a, b); }},
      {"Mod", FloorMod},
      {"Mul", [](double a, double b) { return a * b; }},
      {"Or", [](double a, double b) { return a != 0 || b != 0 ? 1.0 : 0.0; }},
      {"Pow", [](double a, double b) { return std::pow(a, b); }},
      {"Sub", [](double a, double b) { return a - b; }},
      {"Sum", [](double a, double b) { return a + b; }},
      {"Xor", [](double a, double b) { return (a != 0) != (b != 0) ? 1.0 : 0.0; }},
  };
  const auto found = functions.find(op);
  return found == functions.end() ? nullptr : found->second;
}

bool IsComparison(absl::string_view op) {
  return op == "Equal" || op == "Less" || op == "LessOrEqual" || op == "Greater" ||
         op == "GreaterOrEqual";
}

// Folds operators of two inputs from left to right. Max, Min and Sum take any number of inputs.
Results Binary(const Call& call) {
  if (!HasAll(call)) return CannotFold("lacks an input");
  const absl::string_view op = call.node.op_type();
  const bool floating = call.floating[0];
  BinaryFunction function = FindBinary(op);
  if (op == "Mod" && Integer(call.node, "fmod", 0) != 0) {
    function = [](double a, double b) { return std::fmod(a, b); };
  }
  NumberArray y = *call.in[0];
  for (size_t i = 1; i < call.in.size(); ++i) {
    ASSIGN_OR_RETURN(const Shape shape, Broadcast(y.shape, call.in[i]->shape));
    RETURN_IF_ERROR(call.budget.Work(ElementsOf(shape)));
    y = Repeat(y, shape);
    const NumberArray x = Repeat(*call.in[i], shape);
    for (size_t e = 0; e < y.values.size(); ++e) {
      if (op == "Div" && !floating) {
        if (x.values[e] == 0) return CannotFold("divides by zero");
        y.values[e] = std::trunc(y.values[e] / x.values[e]);
      } else {
        y.values[e] = function(y.values[e], x.values[e]);
        if (op == "Pow" && !floating) y.values[e] = std::trunc(y.values[e]);
      }
    }
  }
  return One(floating && !IsComparison(op), std::move(y));
}

Results Where(const Call& call) {
  ASSIGN_OR_RETURN(Shape shape, Broadcast(call.in[1]->shape, call.in[2]->shape));
  ASSIGN_OR_RETURN(shape, Broadcast(shape, call.in[0]->shape));
  const NumberArray condition = Repeat(*call.in[0], shape), b = Repeat(*call.in[2], shape);
  NumberArray y = Repeat(*call.in[1], shape);
  for (size_t i = 0; i < y.values.size(); ++i) {
    if (condition.values[i] == 0) y.values[i] = b.values[i];
  }
  return One(call.floating[1], std::move(y));
}

Results Clip(const Call& call) {
  NumberArray y = *call.in[0];
  double low = -std::numeric_limits<double>::infinity(), high = -low;
  if (call.Has(1)) {
    ASSIGN_OR_RETURN(low, First(call, 1));
  }
  if (call.Has(2)) {
    ASSIGN_OR_RETURN(high, First(call, 2));
  }
  for (double& value : y.values) value = std::min(std::max(value, low), high);
  return One(call.floating[0], std::move(y));
}

// ---------------------------------------------------------------- shape

Results ShapeOf(const Call& call) {
  const Shape& shape = call.in[0]->shape;
  const int64_t rank = std::ssize(shape);
  const auto clamp = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank);
  };
  const int64_t begin = clamp(Integer(call.node, "start", 0));
  const int64_t end = std::max(begin, clamp(Integer(call.node, "end", rank)));
  return One(false, {{end - begin}, {shape.begin() + begin, shape.begin() + end}});
}

Results Size(const Call& call) {
  return One(false, {{}, {static_cast<double>(ElementsOf(call.in[0]->shape))}});
}

Results Reshape(const Call& call) {
  NumberArray y = *call.in[0];
  Shape shape = Listed(*call.in[1]);
  const bool keeps = Integer(call.node, "allowzero", 0) == 0;
  Shape known;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0 && keeps && d < y.shape.size()) shape[d] = y.shape[d];
    if (shape[d] != -1) known.push_back(shape[d]);
  }
  RETURN_IF_ERROR(CheckShape(known));
  const auto elements = static_cast<int64_t>(y.values.size());
  std::ranges::replace(shape, -1, ElementsOf(known) == 0 ? 0 : elements / ElementsOf(known));
  if (ElementsOf(shape) != elements)
    return CannotFold("reshapes a constant to a shape that does not fit its elements");
  y.shape = std::move(shape);
  return One(call.floating[0], std::move(y));
}

Results Flatten(const Call& call) {
  NumberArray y = *call.in[0];
  int64_t axis = Integer(call.node, "axis", 1);
  if (axis < 0) axis += y.rank();
  if (axis < 0 || axis > y.rank()) return CannotFold("has an axis outside its input");
  const int64_t rows = ElementsOf({y.shape.begin(), y.shape.begin() + axis});
  const int64_t columns = ElementsOf({y.shape.begin() + axis, y.shape.end()});
  y.shape = {rows, columns};
  return One(call.floating[0], std::move(y));
}

Results Squeeze(const Call& call) {
  NumberArray y = *call.in[0];
  ASSIGN_OR_RETURN(const Shape axes, Axes(List(call, 1, "axes").value_or(Shape()), y.rank()));
  const bool all = axes.empty();
  Shape shape;
  for (int64_t d = 0; d < y.rank(); ++d) {
    const bool named = std::ranges::binary_search(axes, d);
    if (named && y.shape[d] != 1) return CannotFold("squeezes a dimension that is not 1");
    if (!(named || (all && y.shape[d] == 1))) shape.push_back(y.shape[d]);
  }
  y.shape = std::move(shape);
  return One(call.floating[0], std::move(y));
}

Results Unsqueeze(const Call& call) {
  NumberArray y = *call.in[0];
  const absl::optional<Shape> given = List(call, 1, "axes");
  if (!given) return CannotFold("lacks its axes");
  ASSIGN_OR_RETURN(const Shape axes, Axes(*given, y.rank() + std::ssize(*given)));
  RETURN_IF_ERROR(CheckShape(Shape(y.rank() + axes.size(), 1)));
  for (int64_t axis : axes) y.shape.insert(y.shape.begin() + axis, 1);
  return One(call.floating[0], std::move(y));
}

Results Transpose(const Call& call) {
  const NumberArray& x = *call.in[0];
  Shape reversed(x.rank());
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  const Shape permutation = Integers(call.node, "perm").value_or(reversed);
  const Shape strides = Strides(x.shape);
  const absl::StatusOr<Shape> axes = Axes(permutation, x.rank());
  if (!axes.ok() || std::ssize(*axes) != x.rank())
    return CannotFold("has an impossible permutation");
  Shape shape, taken;
  for (int64_t d : permutation) {
    shape.push_back(x.shape[d]);
    taken.push_back(strides[d]);
  }
  return One(call.floating[0], View(x, std::move(shape), taken));
}

Results Expand(const Call& call) {
  ASSIGN_OR_RETURN(const Shape shape, Broadcast(call.in[0]->shape, Listed(*call.in[1])));
  return One(call.floating[0], Repeat(*call.in[0], shape));
}

Results Tile(const Call& call) {
  const NumberArray& x = *call.in[0];
  const Shape repeats = Listed(*call.in[1]);
  if (std::ssize(repeats) != x.rank() ||
      std::ranges::any_of(repeats, [](int64_t times) { return times < 0; })) {
    return CannotFold("repeats other dimensions than it has");
  }
  // Repeating [2, 3] twice along each dimension: a view of [2, 2, 2, 3] with strides of 0,
  // reshaped.
  const Shape own = Strides(x.shape);
  Shape shape, split, strides;
  for (int64_t d = 0; d < x.rank(); ++d) {
    split.insert(split.end(), {repeats[d], x.shape[d]});
    strides.insert(strides.end(), {0, own[d]});
    if (ElementsOf({repeats[d], x.shape[d]}) > kElementsMax) {
      return CannotFold("makes a constant that is too large");
    }
    shape.push_back(repeats[d] * x.shape[d]);
  }
  if (ElementsOf(shape) > kElementsMax) return CannotFold("makes a constant that is too large");
  NumberArray y = View(x, std::move(split), strides);
  y.shape = std::move(shape);
  return One(call.floating[0], std::move(y));
}

Results Concat(const Call& call) {
  if (!HasAll(call)) return CannotFold("lacks an input");
  const NumberArray& first = *call.in[0];
  ASSIGN_OR_RETURN(const int64_t axis, Axis(Integer(call.node, "axis", 0), first.rank()));
  NumberArray y{.shape = first.shape};
  y.shape[axis] = 0;
  for (const NumberArray* x : call.in) {
    if (x->rank() != y.rank()) return CannotFold("joins constants that do not fit");
    for (int64_t d = 0; d < y.rank(); ++d) {
      if (d != axis && x->shape[d] != y.shape[d])
        return CannotFold("joins constants that do not fit");
    }
    y.shape[axis] += x->shape[axis];
    if (ElementsOf(y.shape) > kElementsMax) return CannotFold("makes a constant that is too large");
  }
  if (ElementsOf(y.shape) == 0) return One(call.floating[0], std::move(y));
  const int64_t outer = ElementsOf({y.shape.begin(), y.shape.begin() + axis});
  RETURN_IF_ERROR(call.budget.Work(outer * std::ssize(call.in)));
  for (int64_t o = 0; o < outer; ++o) {
    for (const NumberArray* x : call.in) {
      const int64_t each = std::ssize(x->values) / outer;
      y.values.insert(y.values.end(), x->values.begin() + o * each,
                      x->values.begin() + (o + 1) * each);
    }
  }
  return One(call.floating[0], std::move(y));
}

NumberArray Part(const NumberArray& x, int64_t axis, int64_t begin, int64_t size) {
  const Shape strides = Strides(x.shape);
  Shape shape = x.shape;
  shape[axis] = size;
  return View(x, std::move(shape), strides, begin * strides[axis]);
}

Results Split(const Call& call) {
  const NumberArray& x = *call.in[0];
  ASSIGN_OR_RETURN(const int64_t axis, Axis(Integer(call.node, "axis", 0), x.rank()));
  absl::optional<Shape> sizes = List(call, 1, "split");
  if (!sizes) {
    const int64_t parts = call.node.output_size();
    const int64_t each = (x.shape[axis] + parts - 1) / parts;
    sizes.emplace(parts, each);
    sizes->back() = x.shape[axis] - each * (parts - 1);
  }
  if (std::ssize(*sizes) != call.node.output_size() ||
      std::ranges::any_of(*sizes, [&](int64_t size) { return size < 0 || size > x.shape[axis]; }) ||
      std::accumulate(sizes->begin(), sizes->end(), int64_t{0}) != x.shape[axis]) {
    return CannotFold("splits into parts that do not fit");
  }
  std::vector<Result> parts;
  int64_t begin = 0;
  for (int64_t size : *sizes) {
    parts.push_back({call.floating[0], Part(x, axis, begin, size)});
    begin += size;
  }
  return parts;
}

Results Slice(const Call& call) {
  const NumberArray& x = *call.in[0];
  const absl::optional<Shape> starts = List(call, 1, "starts"), ends = List(call, 2, "ends");
  if (!starts || !ends || starts->size() != ends->size()) return CannotFold("lacks starts or ends");
  absl::optional<Shape> axes = List(call, 3, "axes");
  const Shape steps = List(call, 4, "steps").value_or(Shape(starts->size(), 1));
  if (!axes) {
    axes.emplace(starts->size());
    std::iota(axes->begin(), axes->end(), 0);
  }
  if (axes->size() != starts->size() || steps.size() != starts->size()) {
    return CannotFold("has lists of different lengths");
  }
  Shape shape = x.shape, strides = Strides(x.shape), seen;
  int64_t first = 0;
  for (size_t i = 0; i < axes->size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t axis, Axis((*axes)[i], x.rank()));
    if (std::ranges::count(seen, axis) > 0) return CannotFold("cuts a dimension twice");
    seen.push_back(axis);
    if (steps[i] == 0) return CannotFold("has a step of 0");
    // A step beyond the end has the same effect as a step to the end.
    const int64_t size = x.shape[axis], farthest = std::max<int64_t>(size, 1);
    const int64_t step = std::clamp(steps[i], -farthest, farthest);
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
    const auto clamp = [&](int64_t at) {
      return std::clamp(at < 0 ? std::max<int64_t>(at, -size - 1) + size : at, low, high);
    };
    const int64_t begin = clamp((*starts)[i]), end = clamp((*ends)[i]);
    shape[axis] = std::max<int64_t>(0, (end - begin + step - (step > 0 ? 1 : -1)) / step);
    first += begin * strides[axis];
    strides[axis] *= step;
  }
  return One(call.floating[0], View(x, std::move(shape), strides, first));
}

Results Pad(const Call& call) {
  const NumberArray& x = *call.in[0];
  if (Word(call.node, "mode", "constant") != "constant") {
    return CannotFold("pads a constant with other than a constant");
  }
  const absl::optional<Shape> pads = List(call, 1, "pads");
  absl::optional<Shape> axes;
  if (call.Has(3)) axes = Listed(*call.in[3]);
  if (!axes) {
    axes.emplace(x.rank());
    std::iota(axes->begin(), axes->end(), 0);
  }
  if (!pads || pads->size() != 2 * axes->size()) return CannotFold("lacks its pads");
  NumberArray y{.shape = x.shape};
  Shape before(x.rank(), 0);
  for (size_t i = 0; i < axes->size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t axis, Axis((*axes)[i], x.rank()));
    const int64_t begin = (*pads)[i], end = (*pads)[axes->size() + i];
    if (begin < 0 || end < 0) return CannotFold("cuts by padding");
    before[axis] = begin;
    if (std::max(begin, end) > kElementsMax)
      return CannotFold("makes a constant that is too large");
    y.shape[axis] += begin + end;
  }
  RETURN_IF_ERROR(CheckShape(y.shape));
  if (ElementsOf(y.shape) > kElementsMax) return CannotFold("makes a constant that is too large");
  double filling = 0;
  if (call.Has(2)) {
    ASSIGN_OR_RETURN(filling, First(call, 2));
  }
  y.values.assign(ElementsOf(y.shape), filling);
  const Shape strides = Strides(y.shape);
  int64_t first = 0, next = 0;
  for (int64_t d = 0; d < x.rank(); ++d) first += before[d] * strides[d];
  ForEachPosition(x.shape, strides, first, [&](int64_t at) { y.values[at] = x.values[next++]; });
  return One(call.floating[0], std::move(y));
}

// ---------------------------------------------------------------- picking

absl::StatusOr<int64_t> Within(double index, int64_t size) {
  const int64_t i = ToInteger(index) < 0 ? ToInteger(index) + size : ToInteger(index);
  if (i < 0 || i >= size) return CannotFold("picks an element outside its input");
  return i;
}

Results Gather(const Call& call) {
  const NumberArray &x = *call.in[0], &index = *call.in[1];
  ASSIGN_OR_RETURN(const int64_t axis, Axis(Integer(call.node, "axis", 0), x.rank()));
  const int64_t outer = ElementsOf({x.shape.begin(), x.shape.begin() + axis});
  const int64_t inner = ElementsOf({x.shape.begin() + axis + 1, x.shape.end()});
  NumberArray y{.shape = {x.shape.begin(), x.shape.begin() + axis}};
  y.shape.insert(y.shape.end(), index.shape.begin(), index.shape.end());
  y.shape.insert(y.shape.end(), x.shape.begin() + axis + 1, x.shape.end());
  if (ElementsOf(y.shape) > kElementsMax) return CannotFold("makes a constant that is too large");
  Shape picks;
  for (double pick : index.values) {
    ASSIGN_OR_RETURN(picks.emplace_back(), Within(pick, x.shape[axis]));
  }
  if (ElementsOf(y.shape) == 0) return One(call.floating[0], std::move(y));
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i : picks) {
      const auto from = x.values.begin() + (o * x.shape[axis] + i) * inner;
      y.values.insert(y.values.end(), from, from + inner);
    }
  }
  return One(call.floating[0], std::move(y));
}

// Returns whether the shape of an index of GatherElements or ScatterElements fits into x, ignoring
// `axis`.
bool IndexFits(const NumberArray& x, const NumberArray& index, int64_t axis) {
  if (index.rank() != x.rank()) return false;
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (d != axis && index.shape[d] > x.shape[d]) return false;
  }
  return true;
}

Results GatherElements(const Call& call) {
  const NumberArray &x = *call.in[0], &index = *call.in[1];
  ASSIGN_OR_RETURN(const int64_t axis, Axis(Integer(call.node, "axis", 0), x.rank()));
  if (!IndexFits(x, index, axis)) return CannotFold("has an index that does not fit");
  const Shape strides = Strides(x.shape);
  Shape others = strides;
  others[axis] = 0;
  NumberArray y{.shape = index.shape};
  absl::Status status;
  ForEachPosition(index.shape, others, 0, [&](int64_t at) {
    const auto i = Within(index.values[y.values.size()], x.shape[axis]);
    if (!i.ok()) status = i.status();
    y.values.push_back(i.ok() ? x.values[at + *i * strides[axis]] : 0);
  });
  RETURN_IF_ERROR(status);
  return One(call.floating[0], std::move(y));
}

// Returns the start of each row that an index of GatherND or ScatterND selects, and the number of
// elements of a row.
absl::StatusOr<std::pair<Shape, int64_t>> Rows(const NumberArray& x, const NumberArray& index,
                                               int64_t batch_dims) {
  if (index.rank() == 0) return CannotFold("has an index without dimensions");
  const int64_t depth = index.shape.back();
  if (depth < 1 || batch_dims < 0 || batch_dims >= x.rank() || batch_dims + depth > x.rank()) {
    return CannotFold("has an index that does not fit");
  }
  const Shape strides = Strides(x.shape);
  const int64_t size = ElementsOf({x.shape.begin() + batch_dims + depth, x.shape.end()});
  const int64_t batches = ElementsOf({x.shape.begin(), x.shape.begin() + batch_dims});
  const int64_t rows = depth == 0 ? 0 : std::ssize(index.values) / depth;
  if (rows > 0 && (batches == 0 || rows % batches != 0)) {
    return CannotFold("has an index that does not fit");
  }
  const int64_t batch_stride = ElementsOf({x.shape.begin() + batch_dims, x.shape.end()});
  Shape begins;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t at = row / (rows / batches) * batch_stride;
    for (int64_t d = 0; d < depth; ++d) {
      ASSIGN_OR_RETURN(const int64_t i,
                       Within(index.values[row * depth + d], x.shape[batch_dims + d]));
      at += i * strides[batch_dims + d];
    }
    begins.push_back(at);
  }
  return std::pair(std::move(begins), size);
}

Results GatherNd(const Call& call) {
  const NumberArray &x = *call.in[0], &index = *call.in[1];
  const int64_t batch_dims = Integer(call.node, "batch_dims", 0);
  ASSIGN_OR_RETURN(const auto rows, Rows(x, index, batch_dims));
  NumberArray y{.shape = {index.shape.begin(), index.shape.end() - 1}};
  y.shape.insert(y.shape.end(), x.shape.begin() + batch_dims + index.shape.back(), x.shape.end());
  if (ElementsOf(y.shape) > kElementsMax) return CannotFold("makes a constant that is too large");
  for (int64_t begin : rows.first) {
    y.values.insert(y.values.end(), x.values.begin() + begin,
                    x.values.begin() + begin + rows.second);
  }
  return One(call.floating[0], std::move(y));
}

Results ScatterNd(const Call& call) {
  const NumberArray &index = *call.in[1], &updates = *call.in[2];
  const std::string reduction = Word(call.node, "reduction", "none");
  if (reduction != "none" && reduction != "add") return CannotFold("reduces by other than add");
  NumberArray y = *call.in[0];
  ASSIGN_OR_RETURN(const auto rows, Rows(y, index, 0));
  if (std::ssize(rows.first) * rows.second != std::ssize(updates.values)) {
    return CannotFold("has updates that do not fit");
  }
  int64_t from = 0;
  for (int64_t begin : rows.first) {
    for (int64_t i = 0; i < rows.second; ++i, ++from) {
      double& to = y.values[begin + i];
      to = updates.values[from] + (reduction == "add" ? to : 0);
    }
  }
  return One(call.floating[0], std::move(y));
}

Results ScatterElements(const Call& call) {
  const NumberArray &index = *call.in[1], &updates = *call.in[2];
  const std::string reduction = Word(call.node, "reduction", "none");
  if (reduction != "none" && reduction != "add") return CannotFold("reduces by other than add");
  NumberArray y = *call.in[0];
  ASSIGN_OR_RETURN(const int64_t axis, Axis(Integer(call.node, "axis", 0), y.rank()));
  if (!IndexFits(y, index, axis) || updates.shape != index.shape) {
    return CannotFold("has an index that does not fit");
  }
  const Shape strides = Strides(y.shape);
  Shape others = strides;
  others[axis] = 0;
  int64_t from = 0;
  absl::Status status;
  ForEachPosition(index.shape, others, 0, [&](int64_t at) {
    const auto i = Within(index.values[from], y.shape[axis]);
    if (!i.ok()) {
      status = i.status();
      return;
    }
    double& to = y.values[at + *i * strides[axis]];
    to = updates.values[from++] + (reduction == "add" ? to : 0);
  });
  RETURN_IF_ERROR(status);
  return One(call.floating[0], std::move(y));
}

Results NonZero(const Call& call) {
  const NumberArray& x = *call.in[0];
  const Shape strides = Strides(x.shape);
  const auto count = std::ssize(x.values) - std::ranges::count(x.values, 0);
  if (count * x.rank() > kElementsMax) return CannotFold("makes a constant that is too large");
  RETURN_IF_ERROR(call.budget.Work(count * x.rank()));
  std::vector<std::vector<double>> places(x.rank());
  for (int64_t i = 0; i < std::ssize(x.values); ++i) {
    if (x.values[i] == 0) continue;
    for (int64_t d = 0; d < x.rank(); ++d) {
      places[d].push_back(static_cast<double>(i / strides[d] % x.shape[d]));
    }
  }
  NumberArray y{.shape = {x.rank(), x.rank() == 0 ? 0 : std::ssize(places[0])}};
  for (const std::vector<double>& place : places) {
    y.values.insert(y.values.end(), place.begin(), place.end());
  }
  return One(false, std::move(y));
}

Results OneHot(const Call& call) {
  const NumberArray& index = *call.in[0];
  ASSIGN_OR_RETURN(const double wanted, First(call, 1));
  const int64_t depth = ToInteger(wanted);
  const int64_t given = Integer(call.node, "axis", -1);
  if (given != -1 && given != index.rank())
    return CannotFold("is hot along another axis than the last");
  NumberArray y{.shape = index.shape};
  y.shape.push_back(depth);
  if (depth < 1 || ElementsOf(y.shape) > kElementsMax || call.in[2]->values.size() != 2) {
    return CannotFold("has an impossible depth or other than two values");
  }
  for (double value : index.values) {
    const int64_t hot = ToInteger(value) < 0 ? ToInteger(value) + depth : ToInteger(value);
    for (int64_t i = 0; i < depth; ++i) y.values.push_back(call.in[2]->values[i == hot]);
  }
  return One(call.floating[2], std::move(y));
}

Results Trilu(const Call& call) {
  NumberArray y = *call.in[0];
  if (y.rank() < 2) return CannotFold("needs a matrix");
  double diagonal = 0;
  if (call.Has(1)) {
    ASSIGN_OR_RETURN(diagonal, First(call, 1));
  }
  const bool upper = Integer(call.node, "upper", 1) != 0;
  const int64_t columns = y.shape.back(), rows = y.shape[y.rank() - 2];
  for (int64_t i = 0; i < std::ssize(y.values); ++i) {
    const auto across = static_cast<double>(i % columns - i / columns % rows);
    if (upper ? across < diagonal : across > diagonal) y.values[i] = 0;
  }
  return One(call.floating[0], std::move(y));
}

// ---------------------------------------------------------------- sums and products

Results CumSum(const Call& call) {
  NumberArray y = *call.in[0];
  ASSIGN_OR_RETURN(const double along, First(call, 1));
  ASSIGN_OR_RETURN(const int64_t axis, Axis(ToInteger(along), y.rank()));
  const bool exclusive = Integer(call.node, "exclusive", 0) != 0;
  const bool reverse = Integer(call.node, "reverse", 0) != 0;
  const int64_t stride = Strides(y.shape)[axis], size = y.shape[axis];
  for (int64_t i = 0; i < std::ssize(y.values); ++i) {
    if (i / stride % size != 0) continue;
    double sum = 0;
    for (int64_t k = 0; k < size; ++k) {
      double& value = y.values[i + (reverse ? size - 1 - k : k) * stride];
      const double next = sum + value;
      value = exclusive ? sum : next;
      sum = next;
    }
  }
  return One(call.floating[0], std::move(y));
}

Results Reduce(const Call& call) {
  const NumberArray& x = *call.in[0];
  const absl::string_view op = call.node.op_type();
  ASSIGN_OR_RETURN(Shape axes, Axes(List(call, 1, "axes").value_or(Shape()), x.rank()));
  if (axes.empty()) {
    if (Integer(call.node, "noop_with_empty_axes", 0) != 0) return One(call.floating[0], x);
    axes.resize(x.rank());
    std::iota(axes.begin(), axes.end(), 0);
  }
  Shape kept = x.shape;
  for (int64_t axis : axes) kept[axis] = 1;
  if (ElementsOf(kept) > kElementsMax) return CannotFold("makes a constant that is too large");
  NumberArray y{.shape = kept};
  const double start = op == "ReduceMax"    ? -std::numeric_limits<double>::infinity()
                       : op == "ReduceMin"  ? std::numeric_limits<double>::infinity()
                       : op == "ReduceProd" ? 1
                                            : 0;
  y.values.assign(ElementsOf(kept), start);
  Shape strides = Strides(kept);
  for (int64_t axis : axes) strides[axis] = 0;
  int64_t from = 0;
  ForEachPosition(x.shape, strides, 0, [&](int64_t at) {
    const double value = x.values[from++];
    double& to = y.values[at];
    if (op == "ReduceMax") {
      to = std::max(to, value);
    } else if (op == "ReduceMin") {
      to = std::min(to, value);
    } else if (op == "ReduceProd") {
      to *= value;
    } else {
      to += value;
    }
  });
  if (op == "ReduceMean" && !y.values.empty()) {
    const double count =
        static_cast<double>(x.values.size()) / static_cast<double>(y.values.size());
    for (double& value : y.values) {
      value /= count;
      if (!call.floating[0]) value = std::trunc(value);  // a mean of integers is an integer
    }
  }
  if (Integer(call.node, "keepdims", 1) == 0) {
    y.shape.clear();
    for (int64_t d = 0; d < x.rank(); ++d) {
      if (!std::ranges::binary_search(axes, d)) y.shape.push_back(x.shape[d]);
    }
  }
  return One(call.floating[0], std::move(y));
}

Results MatMul(const Call& call) {
  const NumberArray &a = *call.in[0], &b = *call.in[1];
  if (a.rank() < 2 || b.rank() < 2) return CannotFold("multiplies a vector");
  const int64_t m = a.shape[a.rank() - 2], k = a.shape.back(), n = b.shape.back();
  if (b.shape[b.rank() - 2] != k) return CannotFold("multiplies matrices that do not fit");
  ASSIGN_OR_RETURN(Shape outer, Broadcast({a.shape.begin(), a.shape.end() - 2},
                                          {b.shape.begin(), b.shape.end() - 2}));
  Shape of_a = outer, of_b = outer;
  of_a.insert(of_a.end(), {m, k});
  of_b.insert(of_b.end(), {k, n});
  Shape work = outer;
  work.insert(work.end(),
              {std::max<int64_t>(m, 1), std::max<int64_t>(n, 1), std::max<int64_t>(k, 1)});
  if (ElementsOf(work) > (int64_t{1} << 28)) return CannotFold("is too much to compute");
  RETURN_IF_ERROR(call.budget.Work(ElementsOf(work)));
  const NumberArray x = Repeat(a, of_a), w = Repeat(b, of_b);
  NumberArray y{.shape = outer};
  y.shape.insert(y.shape.end(), {m, n});
  for (int64_t o = 0; o < ElementsOf(outer); ++o) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t e = 0; e < k; ++e) {
          sum += x.values[(o * m + i) * k + e] * w.values[(o * k + e) * n + j];
        }
        y.values.push_back(sum);
      }
    }
  }
  return One(call.floating[0], std::move(y));
}

using Folder = Results (*)(const Call&);

Folder FindFolder(absl::string_view op) {
  static const auto& folders = *new absl::flat_hash_map<absl::string_view, Folder>{
      {"Cast", Cast},
      {"CastLike", CastLike},
      {"Clip", Clip},
      {"Concat", Concat},
      {"Constant", Constant},
      {"ConstantOfShape", ConstantOfShape},
      {"CumSum", CumSum},
      {"Expand", Expand},
      {"EyeLike", EyeLike},
      {"Flatten", Flatten},
      {"Gather", Gather},
      {"GatherElements", GatherElements},
      {"GatherND", GatherNd},
      {"MatMul", MatMul},
      {"NonZero", NonZero},
      {"OneHot", OneHot},
      {"Pad", Pad},
      {"Range", Range},
      {"ReduceMax", Reduce},
      {"ReduceMean", Reduce},
      {"ReduceMin", Reduce},
      {"ReduceProd", Reduce},
      {"ReduceSum", Reduce},
      {"Reshape", Reshape},
      {"ScatterElements", ScatterElements},
      {"ScatterND", ScatterNd},
      {"Shape", ShapeOf},
      {"Size", Size},
      {"Slice", Slice},
      {"Split", Split},
      {"Squeeze", Squeeze},
      {"Tile", Tile},
      {"Transpose", Transpose},
      {"Trilu", Trilu},
      {"Unsqueeze", Unsqueeze},
      {"Where", Where},
  };
  if (const auto found = folders.find(op); found != folders.end()) return found->second;
  if (FindUnary(op) != nullptr) return Unary;
  return FindBinary(op) != nullptr ? Binary : nullptr;
}

// Returns how many inputs the operator needs at least; Constant needs none.
size_t InputsNeeded(absl::string_view op) {
  if (op == "Constant") return 0;
  if (op == "Where" || op == "Range" || op == "OneHot" || op == "ScatterND" ||
      op == "ScatterElements") {
    return 3;
  }
  if (op == "CastLike" || op == "CumSum" || op == "Expand" || op == "Gather" ||
      op == "GatherElements" || op == "GatherND" || op == "MatMul" || op == "Reshape" ||
      op == "Tile") {
    return 2;
  }
  return 1;
}

}  // namespace

absl::Status FoldBudget::Keep(int64_t numbers) {
  numbers_ += numbers;
  return Check();
}

absl::Status FoldBudget::Work(int64_t operations) {
  operations_ += operations;
  return Check();
}

absl::Status FoldBudget::Check() const {
  if (numbers_ > kNumbersMax) {
    return CannotFold(absl::StrCat("makes the file's constants take more than the limit of ",
                                   kNumbersMax, " numbers in memory: export it with smaller ones"));
  }
  if (operations_ > kOperationsMax) {
    return CannotFold(absl::StrCat("makes the file's constants take more than the limit of ",
                                   kOperationsMax,
                                   " operations to compute: export it with smaller ones"));
  }
  return absl::OkStatus();
}

bool IsFoldable(absl::string_view op_type) { return FindFolder(op_type) != nullptr; }

absl::StatusOr<std::vector<FoldedValue>> FoldNode(const NodeProto& node,
                                                  absl::Span<const FoldedValue* const> inputs,
                                                  const OnnxFile& file, FoldBudget& budget) {
  const Folder fold = FindFolder(node.op_type());
  bool depends = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] != nullptr) depends = depends || inputs[i]->depends_on_batch();
  }
  for (size_t i = 0; i < InputsNeeded(node.op_type()); ++i) {
    if (i >= inputs.size() || inputs[i] == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("lacks input ", i));
    }
  }
  std::vector<std::vector<Result>> results;
  for (int p = 0; p < (depends ? kProbes : 1); ++p) {
    Call call{.node = node, .file = file, .budget = budget};
    for (const FoldedValue* input : inputs) {
      if (input != nullptr) {
        RETURN_IF_ERROR(CheckShape(input->at(p).shape));
        RETURN_IF_ERROR(budget.Work(1 + std::ssize(input->at(p).values)));
      }
      call.in.push_back(input == nullptr ? nullptr : &input->at(p));
      call.floating.push_back(input != nullptr && input->floating());
    }
    ASSIGN_OR_RETURN(results.emplace_back(), fold(call));
    for (const Result& result : results.back()) {
      RETURN_IF_ERROR(CheckShape(result.array.shape));
      RETURN_IF_ERROR(budget.Work(1 + std::ssize(result.array.values)));
    }
  }
  std::vector<FoldedValue> outputs;
  for (size_t i = 0; i < results[0].size(); ++i) {
    const bool floating = results[0][i].floating;
    ASSIGN_OR_RETURN(
        FoldedValue output,
        FoldedValue::Make(floating, depends, [&](int p) -> absl::StatusOr<NumberArray> {
          NumberArray array = std::move(results[p][i].array);
          if (floating) {
            for (double& value : array.values) value = static_cast<float>(value);
          }
          return array;
        }));
    RETURN_IF_ERROR(budget.Keep(output.numbers()));
    outputs.push_back(std::move(output));
  }
  return outputs;
}

}  // namespace muster
