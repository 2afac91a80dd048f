#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "lib/graph/attributes.h"
#include "lib/graph/operators/axes.h"
#include "lib/graph/operators/broadcast.h"
#include "lib/graph/operators/families.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr double kSizeMax = limits::kParameterElementsMax;

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

int64_t Product(absl::Span<const int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

// Returns the product of sizes that a user gave, none negative. Returns nullopt if it exceeds the
// size of any tensor.
absl::optional<int64_t> CheckedProduct(absl::Span<const int64_t> sizes) {
  int64_t product = 1;
  for (int64_t size : sizes) {
    if (size != 0 && product > limits::kParameterElementsMax / size) return absl::nullopt;
    product *= size;
  }
  return product;
}

// ---------------------------------------------------------------- ops that only change the shape

absl::Status RelateReshape(const v1::Node& node, Dimensions& dimensions) {
  const std::vector<int64_t>& x = dimensions.Run("...x");
  std::vector<int64_t> y = IntegersAttribute(node, "shape");
  const auto fail = [&](const auto&... fault) {
    return Invalid("[", absl::StrJoin(IntegersAttribute(node, "shape"), ", "), "] ", fault...);
  };
  int64_t rest = -1;  // position of the -1
  for (size_t i = 0; i < y.size(); ++i) {
    if (y[i] == 0) {
      if (i >= x.size()) return fail("keeps dimension ", i, ", which the input does not have");
      y[i] = x[i];
    } else if (y[i] == -1) {
      if (rest >= 0) return fail("has more than one -1");
      rest = i;
      y[i] = 1;
    }
  }
  const int64_t elements = Product(x);
  const absl::optional<int64_t> product = CheckedProduct(y);
  if (!product || (rest < 0 ? elements != *product : elements % *product != 0)) {
    return fail("does not hold ", elements, " elements");
  }
  if (rest >= 0) y[rest] = elements / *product;
  return dimensions.Bind("...y", y);
}

absl::Status RelateFlatten(const v1::Node& node, Dimensions& dimensions) {
  const absl::Span<const int64_t> x = dimensions.Run("...x");
  const int64_t rank = x.size();
  int64_t axis = IntegerAttribute(node, "axis");
  if (axis < -rank || axis > rank) return Invalid("cannot cut ", rank, " dimensions at ", axis);
  if (axis < 0) axis += rank;
  return dimensions.Bind("...y", {Product(x.first(axis)), Product(x.subspan(axis))});
}

absl::Status RelateSqueeze(const v1::Node& node, Dimensions& dimensions) {
  std::vector<int64_t> shape = dimensions.Run("...x");
  RETURN_IF_ERROR(CheckAxes(node, shape.size()));
  const std::vector<int64_t> axes = AxesAttribute(node, shape.size());
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    if (shape[*axis] != 1) return Invalid("dimension ", *axis, " is ", shape[*axis], ", not 1");
    shape.erase(shape.begin() + *axis);
  }
  return dimensions.Bind("...y", shape);
}

absl::Status RelateUnsqueeze(const v1::Node& node, Dimensions& dimensions) {
  std::vector<int64_t> shape = dimensions.Run("...x");
  const int64_t rank = shape.size() + IntegersAttribute(node, "axes").size();
  RETURN_IF_ERROR(CheckAxes(node, rank));
  for (int64_t axis : AxesAttribute(node, rank)) shape.insert(shape.begin() + axis, 1);
  return dimensions.Bind("...y", shape);
}

// ---------------------------------------------------------------- ops that move elements

absl::Status RelateTranspose(const v1::Node& node, Dimensions& dimensions) {
  const std::vector<int64_t>& x = dimensions.Run("...x");
  const std::vector<int64_t> permutation = IntegersAttribute(node, "permutation");
  std::vector<int64_t> sorted = permutation;
  std::ranges::sort(sorted);
  std::vector<int64_t> identity(x.size());
  std::iota(identity.begin(), identity.end(), 0);
  if (sorted != identity) {
    return Invalid("[", absl::StrJoin(permutation, ", "), "] is no permutation of ", x.size(),
                   " dimensions");
  }
  std::vector<int64_t> y;
  for (int64_t dimension : permutation) y.push_back(x[dimension]);
  return dimensions.Bind("...y", y);
}

absl::Status RelateExpand(const v1::Node& node, Dimensions& dimensions) {
  const std::vector<int64_t>& x = dimensions.Run("...x");
  std::vector<int64_t> shape = IntegersAttribute(node, "shape");
  std::ranges::replace(shape, 0, 1);
  if (std::ranges::count(shape, -1) > 0) {
    if (!dimensions.contains("...like")) return Invalid("-1 needs the input 'like'");
    const std::vector<int64_t>& like = dimensions.Run("...like");
    if (like.empty()) return Invalid("'like' has no first dimension for the -1");
    std::ranges::replace(shape, -1, like.front());
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> y, Broadcast(shape, x));
  return dimensions.Bind("...y", y);
}

// Joins the tensors "<part>0", "<part>1", ... along attribute `axis` to `whole`.
absl::Status RelateJoin(const v1::Node& node, absl::string_view part, absl::string_view whole,
                        Dimensions& dimensions) {
  std::vector<int64_t> joined = dimensions.Run(absl::StrCat(part, 0));
  RETURN_IF_ERROR(CheckAxis(node, joined.size()));
  const int64_t axis = AxisAttribute(node, joined.size());
  for (int k = 1; dimensions.contains(absl::StrCat(part, k)); ++k) {
    std::vector<int64_t> next = dimensions.Run(absl::StrCat(part, k));
    std::vector<int64_t> want = joined;
    if (next.size() == want.size()) want[axis] = next[axis];
    if (next != want) {
      return Invalid("[", absl::StrJoin(joined, ", "), "] and [", absl::StrJoin(next, ", "),
                     "] differ in more than dimension ", axis);
    }
    joined[axis] += next[axis];
  }
  return dimensions.Bind(whole, joined);
}

absl::Status RelateConcat(const v1::Node& node, Dimensions& dimensions) {
  return RelateJoin(node, "...x", "...y", dimensions);
}

absl::Status RelateSplit(const v1::Node& node, Dimensions& dimensions) {
  std::vector<int64_t> shape = dimensions.Run("...x");
  RETURN_IF_ERROR(CheckAxis(node, shape.size()));
  const int64_t axis = AxisAttribute(node, shape.size());
  const std::vector<int64_t> sizes = IntegersAttribute(node, "sizes");
  int64_t rest = shape[axis];
  for (size_t k = 0; k < sizes.size(); ++k) {
    if (sizes[k] > rest) break;
    rest -= sizes[k];
    std::vector<int64_t> part = shape;
    part[axis] = sizes[k];
    RETURN_IF_ERROR(dimensions.Bind(absl::StrCat("...y", k), part));
    if (k + 1 == sizes.size() && rest == 0) return absl::OkStatus();
  }
  return Invalid("sizes [", absl::StrJoin(sizes, ", "), "] do not add up to dimension ", axis,
                 " of ", shape[axis]);
}

absl::Status RelateSplitGradient(const v1::Node& node, Dimensions& dimensions) {
  return RelateJoin(node, "...y", "...x", dimensions);
}

absl::Status RelateSlice(const v1::Node& node, Dimensions& dimensions) {
  const std::vector<int64_t>& x = dimensions.Run("...x");
  RETURN_IF_ERROR(CheckAxes(node, x.size()));
  const size_t count = IntegersAttribute(node, "axes").size();
  for (const char* list : {"starts", "ends", "steps"}) {
    if (!HasAttribute(node, list)) continue;
    const size_t size = IntegersAttribute(node, list).size();
    if (size != count) return Invalid("has ", size, " ", list, " for ", count, " axes");
  }
  const SliceRange range = SliceAttributes(node, x);
  const auto empty = std::ranges::find(range.lengths, 0);
  if (empty != range.lengths.end()) {
    return Invalid("nothing is left of dimension ", empty - range.lengths.begin());
  }
  return dimensions.Bind("...y", range.lengths);
}

absl::Status RelatePad(const v1::Node& node, Dimensions& dimensions) {
  std::vector<int64_t> shape = dimensions.Run("...x");
  const std::vector<int64_t> padding = IntegersAttribute(node, "padding");
  if (padding.size() != 2 * shape.size()) {
    return Invalid("has ", padding.size(), " paddings for ", shape.size(), " dimensions");
  }
  for (size_t i = 0; i < shape.size(); ++i) shape[i] += padding[i] + padding[shape.size() + i];
  return dimensions.Bind("...y", shape);
}

absl::Status RelateGather(const v1::Node& node, Dimensions& dimensions) {
  std::vector<int64_t> shape = dimensions.Run("...x");
  const std::vector<int64_t>& index = dimensions.Run("...index");
  RETURN_IF_ERROR(CheckAxis(node, shape.size()));
  const auto at = shape.erase(shape.begin() + AxisAttribute(node, shape.size()));
  shape.insert(at, index.begin(), index.end());
  return dimensions.Bind("...y", shape);
}

// An index of elements has the tensor's rank. Along every dimension except the axis it is no larger
// than the tensor.
absl::Status CheckElementIndex(const v1::Node& node, absl::Span<const int64_t> x,
                               absl::Span<const int64_t> index) {
  if (index.size() != x.size()) {
    return Invalid("an index of ", index.size(), " dimensions into ", x.size());
  }
  RETURN_IF_ERROR(CheckAxis(node, x.size()));
  const int64_t axis = AxisAttribute(node, x.size());
  for (int64_t d = 0; d < static_cast<int64_t>(x.size()); ++d) {
    if (d != axis && index[d] > x[d]) {
      return Invalid("dimension ", d, " of the index is ", index[d], ", beyond ", x[d]);
    }
  }
  return absl::OkStatus();
}

absl::Status RelateIndexedElements(const v1::Node& node, Dimensions& dimensions) {
  return CheckElementIndex(node, dimensions.Run("...x"), dimensions.Run("...index"));
}

absl::Status RelateTopK(const v1::Node& node, Dimensions& dimensions) {
  const int64_t chosen = IntegerAttribute(node, "k"), size = dimensions["size"];
  if (chosen > size) return Invalid("there are no ", chosen, " among ", size);
  if (size > std::numeric_limits<int32_t>::max()) return Invalid("an i32 cannot count ", size);
  return dimensions.Bind("chosen", chosen);
}

// ---------------------------------------------------------------- constants

absl::Status CheckConstantElements(const v1::Node& node, absl::Span<const int64_t> shape) {
  const bool is_integer = WordAttribute(node, "dtype") == "i32";
  const auto fits = [](double value) {
    return value == std::floor(value) && std::abs(value) <= std::numeric_limits<int32_t>::max();
  };
  if (HasAttribute(node, "value")) {
    if (!is_integer || fits(NumberAttribute(node, "value"))) return absl::OkStatus();
    return Invalid("value ", NumberAttribute(node, "value"), " is not an i32");
  }
  const absl::string_view list = is_integer ? "integers" : "values";
  if (!HasAttribute(node, list)) {
    return Invalid("dtype ", WordAttribute(node, "dtype"), " needs the attribute 'value' or '",
                   list, "'");
  }
  const int64_t given =
      is_integer ? IntegersAttribute(node, list).size() : NumbersAttribute(node, list).size();
  const absl::optional<int64_t> elements = CheckedProduct(shape);
  if (elements != given) {
    return Invalid("[", absl::StrJoin(shape, ", "), "] has not ", given, " elements");
  }
  return absl::OkStatus();
}

absl::Status RelateConstant(const v1::Node& node, Dimensions& dimensions) {
  int given = 0;
  for (const char* name : {"value", "values", "integers"}) given += HasAttribute(node, name);
  if (given != 1) return Invalid("needs one of the attributes 'value', 'values', 'integers'");
  const bool is_like = dimensions.contains("...like");
  if (is_like == HasAttribute(node, "shape")) {
    return Invalid("needs either attribute 'shape' or the input 'like'");
  }
  if (is_like) RETURN_IF_ERROR(dimensions.Bind("...y", dimensions.Run("...like")));
  if (!is_like) RETURN_IF_ERROR(dimensions.Bind("...y", IntegersAttribute(node, "shape")));
  return CheckConstantElements(node, dimensions.Run("...y"));
}

absl::Status CheckTablePart(const v1::Node& node, Dimensions& dimensions) {
  return CheckPart(node, dimensions["vocabulary"]);
}

using Relation = absl::Status (*)(const v1::Node&, Dimensions&);

// Returns an op that moves the elements of one input to one output.
Operator Movement(absl::string_view name, std::vector<AttributeRule> attributes, Relation relate,
                  absl::string_view gradient) {
  return {.name = name,
          .inputs = {"x E[...x]"},
          .outputs = {"y E[...y]"},
          .attributes = std::move(attributes),
          .relate = relate,
          .gradients = {{gradient, {"dy", "x"}, {"x"}}}};
}

Operator MovementGradient(absl::string_view name, std::vector<AttributeRule> attributes,
                          Relation relate) {
  return {.name = name,
          .inputs = {"dy T[...y]", "x(shape) T[...x]"},
          .outputs = {"dx T[...x]"},
          .attributes = std::move(attributes),
          .relate = relate};
}

}  // namespace

std::vector<Operator> ShapeOperators() {
  constexpr double kRank = kRankMax;
  const std::vector<AttributeRule> axes = {Integers("axes").Within(-kRank, kRank - 1)};
  const std::vector<AttributeRule> transpose = {Integers("permutation").Within(0, kRank - 1)};
  const AttributeRule axis = Integer("axis").Within(-kRank, kRank);
  const std::vector<AttributeRule> split = {axis, Integers("sizes").Within(1, kSizeMax)};
  const std::vector<AttributeRule> slice = {Integers("axes").Within(-kRank, kRank - 1),
                                            Integers("starts"), Integers("ends"),
                                            Integers("steps").Optional().Within(1, kSizeMax)};
  const std::vector<AttributeRule> pad = {Integers("padding").Within(0, kSizeMax),
                                          Number("value").Default(0)};
  const std::vector<AttributeRule> gather = {axis.Default(0)};
  const std::vector<AttributeRule> scatter = {
      axis.Default(0), Word("reduction").OneOf({"none", "add"}).DefaultFirst()};
  const std::vector<AttributeRule> top_k = {Integer("k").Within(1, kSizeMax),
                                            Integer("largest").Default(1).Within(0, 1)};
  return {
      Movement("Reshape", {Integers("shape").Within(-1, kSizeMax)}, RelateReshape, "ReshapeGrad"),
      Movement("Flatten", {axis.Default(1)}, RelateFlatten, "ReshapeGrad"),
      Movement("Squeeze", axes, RelateSqueeze, "ReshapeGrad"),
      Movement("Unsqueeze", axes, RelateUnsqueeze, "ReshapeGrad"),
      {.name = "ReshapeGrad",
       .inputs = {"dy T[...y]", "x(shape) T[...x]"},
       .outputs = {"dx T[...x]"},
       .relate =
           [](const v1::Node&, Dimensions& dimensions) {
             return Product(dimensions.Run("...x")) == Product(dimensions.Run("...y"))
                        ? absl::OkStatus()
                        : absl::InvalidArgumentError("different numbers of elements");
           }},
      Movement("Transpose", transpose, RelateTranspose, "TransposeGrad"),
      MovementGradient("TransposeGrad", transpose, RelateTranspose),
      {.name = "Expand",
       .inputs = {"x E[...x]", "like?(shape) A[...like]"},
       .outputs = {"y E[...y]"},
       .attributes = {Integers("shape").Within(-1, kSizeMax)},
       .relate = RelateExpand,
       .gradients = {{"ExpandGrad", {"dy", "x"}, {"x"}}}},
      {.name = "ExpandGrad",
       .inputs = {"dy T[...y]", "x(shape) T[...a]"},
       .outputs = {"dx T[...a]"},
       .relate = RelateBroadcastGradient},
      Movement("Slice", slice, RelateSlice, "SliceGrad"),
      MovementGradient("SliceGrad", slice, RelateSlice),
      {.name = "Pad",
       .inputs = {"x T[...x]"},
       .outputs = {"y T[...y]"},
       .attributes = pad,
       .relate = RelatePad,
       .gradients = {{"PadGrad", {"dy", "x"}, {"x"}}}},
      MovementGradient("PadGrad", pad, RelatePad),

      {.name = "Concat",
       .inputs = {"x* E[...x#]"},
       .outputs = {"y E[...y]"},
       .attributes = {axis},
       .relate = RelateConcat,
       .gradients = {{"ConcatGrad", {"dy", "x"}, {"x"}}}},
      {.name = "ConcatGrad",
       .inputs = {"dy T[...y]", "x*(shape) T[...x#]"},
       .outputs = {"dx* T[...x#]"},
       .attributes = {axis},
       .relate = RelateConcat},
      {.name = "Split",
       .inputs = {"x E[...x]"},
       .outputs = {"y* E[...y#]"},
       .attributes = split,
       .relate = RelateSplit,
       .gradients = {{"SplitGrad", {"dy"}, {"x"}}}},
      {.name = "SplitGrad",
       .inputs = {"dy* T[...y#]"},
       .outputs = {"dx T[...x]"},
       .attributes = split,
       .relate = RelateSplitGradient},

      {.name = "Gather",
       .inputs = {"x E[...x]", "index i32[...index]"},
       .outputs = {"y E[...y]"},
       .attributes = gather,
       .relate = RelateGather,
       .gradients = {{"GatherGrad", {"dy", "x", "index"}, {"x"}}}},
      {.name = "GatherGrad",
       .inputs = {"dy T[...y]", "x(shape) T[...x]", "index i32[...index]"},
       .outputs = {"dx T[...x]"},
       .attributes = gather,
       .relate = RelateGather},
      {.name = "GatherElements",
       .inputs = {"x E[...x]", "index i32[...index]"},
       .outputs = {"y E[...index]"},
       .attributes = gather,
       .relate = RelateIndexedElements,
       .gradients = {{"GatherElementsGrad", {"dy", "x", "index"}, {"x"}}}},
      {.name = "GatherElementsGrad",
       .inputs = {"dy T[...index]", "x(shape) T[...x]", "index i32[...index]"},
       .outputs = {"dx T[...x]"},
       .attributes = gather,
       .relate = RelateIndexedElements},
      {.name = "ScatterElements",
       .inputs = {"data E[...x]", "index i32[...index]", "updates E[...index]"},
       .outputs = {"y E[...x]"},
       .attributes = scatter,
       .relate = RelateIndexedElements,
       .gradients = {{"ScatterElementsGradUpdates", {"dy", "index"}, {"updates"}},
                     {"ScatterElementsGradData", {"dy", "index"}, {"data"}}}},
      {.name = "ScatterElementsGradData",
       .inputs = {"dy T[...x]", "index i32[...index]"},
       .outputs = {"ddata T[...x]"},
       .attributes = scatter,
       .relate = RelateIndexedElements},
      {.name = "ScatterElementsGradUpdates",
       .inputs = {"dy T[...x]", "index i32[...index]"},
       .outputs = {"dupdates T[...index]"},
       .attributes = scatter,
       .relate = RelateIndexedElements},
      {.name = "TopK",
       .inputs = {"x T[..., size]"},
       .outputs = {"values T[..., chosen]", "index i32[..., chosen]"},
       .attributes = top_k,
       .relate = RelateTopK,
       .gradients = {{"TopKGrad", {"dy", "x", "index"}, {"x"}}}},
      {.name = "TopKGrad",
       .inputs = {"dy T[..., chosen]", "x(shape) T[..., size]", "index i32[..., chosen]"},
       .outputs = {"dx T[..., size]"},
       .attributes = top_k,
       .relate = RelateTopK},
      {.name = "Embedding",
       .inputs = {"ids i32[...]", "table T[vocabulary, channel]"},
       .outputs = {"y T[..., channel]"},
       .attributes = PartRules(),
       .relate = CheckTablePart,
       .gradients = {{"EmbeddingGrad", {"dy", "ids", "table"}, {"table"}}}},
      {.name = "EmbeddingGrad",
       .inputs = {"dy T[..., channel]", "ids i32[...]", "table(shape) T[vocabulary, channel]"},
       .outputs = {"dtable T[vocabulary, channel]"},
       .attributes = PartRules(),
       .relate = CheckTablePart},

      {.name = "SampleIndex", .inputs = {"like(shape) A[batch, ...]"}, .outputs = {"y i32[batch]"}},
      {.name = "Constant",
       .inputs = {"like?(shape) A[...like]"},
       .outputs = {"y @dtype[...y]"},
       .attributes = {Integers("shape").Optional().Within(1, kSizeMax),
                      Word("dtype").OneOf({"f32", "bf16", "f16", "i32"}).DefaultFirst(),
                      Number("value").Optional(), Numbers("values").Optional(),
                      Integers("integers").Optional().Within(-2147483648.0, 2147483647.0)},
       .relate = RelateConstant},
  };
}

}  // namespace muster
