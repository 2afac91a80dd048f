#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/graph/onnx/converters/converters.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using onnx::NodeProto;

constexpr int64_t kCountedMax = int64_t{1} << 24;

absl::Status Gather(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  int64_t axis = Integer(node, "axis", 0);
  if (axis < 0) axis += std::ssize(shape);
  if (axis < 0 || axis >= std::ssize(shape))
    return NodeFault(node, "has an axis outside its input");
  const FoldedValue* folded = im.Folded(node, 1);
  // A single row becomes a Slice, because the gradient of a Slice needs no scatter.
  if (folded != nullptr && folded->rank() == 0 && !folded->depends_on_batch() &&
      !shape[axis].of_batch) {
    const int64_t size = shape[axis].value;
    int64_t at = ToInteger(folded->at(0).values.at(0));
    if (at < -size || at >= size) {
      return NodeFault(node, absl::StrCat("picks element ", at, " of ", size));
    }
    if (at < 0) at += size;
    ASSIGN_OR_RETURN(const std::string slice, im.Make(node, "Slice", {x},
                                                      {{"axes", IntegersValue({axis})},
                                                       {"starts", IntegersValue({at})},
                                                       {"ends", IntegersValue({at + 1})}}));
    return im.Add(node, "Squeeze", {slice}, {im.Output(node, 0)},
                  {{"axes", IntegersValue({axis})}});
  }
  ASSIGN_OR_RETURN(const std::string index, im.Tensor(node, 1));
  ASSIGN_OR_RETURN(const int64_t index_rank, im.Rank(node, 1));
  // A table of rows can use the faster Embedding. Embedding takes no negative ids, which only
  // constant indices are expected to have.
  if (axis == 0 && shape.size() == 2 && index_rank > 0 && folded == nullptr) {
    return im.Add(node, "Embedding", {index, x}, {im.Output(node, 0)});
  }
  return im.Add(node, "Gather", {x, index}, {im.Output(node, 0)}, {{"axis", IntegerValue(axis)}});
}

absl::Status GatherElements(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::vector<std::string> in, im.Tensors(node));
  ASSIGN_OR_RETURN(const int64_t rank, im.Rank(node, 0));
  const int64_t axis = Integer(node, "axis", 0);
  return im.Add(node, "GatherElements", in, {im.Output(node, 0)},
                {{"axis", IntegerValue(axis < 0 ? axis + rank : axis)}});
}

absl::Status ScatterElements(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::vector<std::string> in, im.Tensors(node));
  ASSIGN_OR_RETURN(const int64_t rank, im.Rank(node, 0));
  const int64_t axis = Integer(node, "axis", 0);
  const std::string reduction = Word(node, "reduction", "none");
  if (reduction != "none" && reduction != "add")
    return NodeFault(node, "reduces by other than add");
  return im.Add(
      node, "ScatterElements", in, {im.Output(node, 0)},
      {{"axis", IntegerValue(axis < 0 ? axis + rank : axis)}, {"reduction", WordValue(reduction)}});
}

// ---------------------------------------------------------------- GatherND and ScatterND

// The coordinates of GatherND and ScatterND (input 1), as positions among the rows that the first
// `depth` dimensions of x define. They are i32 with the index's shape without its last dimension.
struct Places {
  std::string positions;
  std::vector<Extent> shape;  // shape of `positions`
  int64_t depth = 0;
};

absl::StatusOr<std::string> FoldedPositions(OnnxImporter& im, const NodeProto& node,
                                            const FoldedValue& index,
                                            const std::vector<Extent>& shape, int64_t depth) {
  ASSIGN_OR_RETURN(const FoldedValue positions,
                   FoldedValue::Make(false, true, [&](int probe) -> absl::StatusOr<NumberArray> {
                     const NumberArray& in = index.at(probe);
                     NumberArray out{.shape = {in.shape.begin(), in.shape.end() - 1}};
                     for (size_t row = 0; row < in.values.size(); row += depth) {
                       double position = 0;
                       for (int64_t d = 0; d < depth; ++d) {
                         const int64_t size =
                             shape[d].value * (shape[d].of_batch ? kProbeBatch[probe] : 1);
                         double at = in.values[row + d];
                         if (at < 0) at += static_cast<double>(size);
                         if (!(at >= 0 && at < size))
                           return NodeFault(node, "picks outside its input");
                         position = position * static_cast<double>(size) + at;
                       }
                       out.values.push_back(position);
                     }
                     return out;
                   }));
  return im.TensorFor(node, positions);
}

// Makes the constant 0, 1, 2, ...
absl::StatusOr<std::string> Counted(OnnxImporter& im, const NodeProto& node, int64_t count) {
  if (count > kCountedMax) return NodeFault(node, "counts to over 2^24");
  NumberArray numbers{.shape = {count}};
  for (int64_t i = 0; i < count; ++i) numbers.values.push_back(static_cast<double>(i));
  return im.Constant(node, false, numbers);
}

absl::StatusOr<std::string> ComputedPositions(OnnxImporter& im, const NodeProto& node,
                                              const std::string& index,
                                              const std::vector<Extent>& shape, int64_t depth) {
  std::string sum;
  for (int64_t d = 0; d < depth; ++d) {
    ASSIGN_OR_RETURN(const std::string slice, im.Make(node, "Slice", {index},
                                                      {{"axes", IntegersValue({-1})},
                                                       {"starts", IntegersValue({d})},
                                                       {"ends", IntegersValue({d + 1})}}));
    ASSIGN_OR_RETURN(std::string at,
                     im.Make(node, "Squeeze", {slice}, {{"axes", IntegersValue({-1})}}));
    if (d > 0 && shape[d].of_batch) {
      return NodeFault(node, "has the batch as a coordinate after others");
    }
    // The final gather checks a single coordinate. In a sum, a coordinate out of range would select
    // another row. So each coordinate is first used to pick from 0, 1, 2, ..., which checks it and
    // resolves negative numbers.
    if (depth > 1 && !shape[d].of_batch) {
      ASSIGN_OR_RETURN(const std::string numbers, Counted(im, node, shape[d].value));
      ASSIGN_OR_RETURN(at, im.Make(node, "Gather", {numbers, at}, {{"axis", IntegerValue(0)}}));
    }
    if (d == 0) {
      sum = at;
      continue;
    }
    ASSIGN_OR_RETURN(const std::string size,
                     im.Scalar(node, static_cast<double>(shape[d].value), false));
    ASSIGN_OR_RETURN(sum, im.Make(node, "Mul", {sum, size}));
    ASSIGN_OR_RETURN(sum, im.Make(node, "Add", {sum, at}));
  }
  return sum;
}

absl::StatusOr<Places> PlacesOf(OnnxImporter& im, const NodeProto& node,
                                const std::vector<Extent>& shape) {
  if (Integer(node, "batch_dims", 0) != 0) return NodeFault(node, "has batch_dims");
  Places places;
  const FoldedValue* folded = im.Folded(node, 1);
  if (folded != nullptr) {
    absl::StatusOr<std::vector<Extent>> own = folded->Shape();
    if (!own.ok()) return NodeFault(node, own.status().message());
    places.shape = *std::move(own);
  } else {
    ASSIGN_OR_RETURN(places.shape, im.InputShape(node, 1));
  }
  if (places.shape.empty()) return NodeFault(node, "has an index without dimensions");
  if (places.shape.back().of_batch) return NodeFault(node, "has an index that does not fit");
  places.depth = places.shape.back().value;
  places.shape.pop_back();
  if (places.depth < 1 || places.depth > std::ssize(shape)) {
    return NodeFault(node, "has an index that does not fit");
  }
  if (folded != nullptr) {
    ASSIGN_OR_RETURN(places.positions, FoldedPositions(im, node, *folded, shape, places.depth));
  } else {
    ASSIGN_OR_RETURN(const std::string index, im.Tensor(node, 1));
    ASSIGN_OR_RETURN(places.positions, ComputedPositions(im, node, index, shape, places.depth));
  }
  return places;
}

// Returns the product of the extents [begin, end).
Extent Span(const std::vector<Extent>& shape, int64_t begin, int64_t end) {
  Extent product{1};
  for (int64_t d = begin; d < end; ++d) {
    product.value *= shape[d].value;
    product.of_batch = product.of_batch || shape[d].of_batch;
  }
  return product;
}

absl::Status GatherNd(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  ASSIGN_OR_RETURN(const Places places, PlacesOf(im, node, shape));
  std::vector<Extent> rows = {Span(shape, 0, places.depth)};
  rows.insert(rows.end(), shape.begin() + places.depth, shape.end());
  ASSIGN_OR_RETURN(const std::string flat, im.Reshaped(node, x, rows));
  return im.Add(node, "Gather", {flat, places.positions}, {im.Output(node, 0)},
                {{"axis", IntegerValue(0)}});
}

absl::Status ScatterNd(OnnxImporter& im, const NodeProto& node) {
  const std::string reduction = Word(node, "reduction", "none");
  if (reduction != "none" && reduction != "add")
    return NodeFault(node, "reduces by other than add");
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::string updates, im.Tensor(node, 2));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  ASSIGN_OR_RETURN(const Places places, PlacesOf(im, node, shape));
  // x becomes [rows, elements of a row], and each index is repeated for the elements of its row.
  const Extent rows = Span(shape, 0, places.depth);
  const Extent width = Span(shape, places.depth, std::ssize(shape));
  const Extent count = Span(places.shape, 0, std::ssize(places.shape));
  ASSIGN_OR_RETURN(const std::string flat, im.Reshaped(node, x, {rows, width}));
  ASSIGN_OR_RETURN(const std::string column, im.Reshaped(node, places.positions, {count, {1}}));
  ASSIGN_OR_RETURN(const std::string index, im.Expanded(node, column, {count, width}));
  ASSIGN_OR_RETURN(const std::string values, im.Reshaped(node, updates, {count, width}));
  ASSIGN_OR_RETURN(const std::string y,
                   im.Make(node, "ScatterElements", {flat, index, values},
                           {{"axis", IntegerValue(0)}, {"reduction", WordValue(reduction)}}));
  ASSIGN_OR_RETURN(const std::string shaped, im.Reshaped(node, y, shape));
  im.Alias(node, 0, shaped);
  return absl::OkStatus();
}

// ---------------------------------------------------------------- masks

absl::Status OneHot(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string index, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const int64_t rank, im.Rank(node, 0));
  ASSIGN_OR_RETURN(const double depth, im.Number(node, 1, 0));
  const FoldedValue* values = im.Folded(node, 2);
  const int64_t axis = Integer(node, "axis", -1);
  if (values == nullptr || values->at(0).values.size() != 2 ||
      !(depth >= 1 && depth < kCountedMax) || (axis != -1 && axis != rank)) {
    return NodeFault(node, "is hot along another axis than the last, or computes its values");
  }
  ASSIGN_OR_RETURN(const std::string numbers, Counted(im, node, ToInteger(depth)));
  // Negative indices count from the end. An index out of range gives a row without a 1.
  ASSIGN_OR_RETURN(const std::string size, im.Scalar(node, depth, false));
  ASSIGN_OR_RETURN(const std::string zero, im.Scalar(node, 0, false));
  ASSIGN_OR_RETURN(const std::string is_negative, im.Make(node, "Less", {index, zero}));
  ASSIGN_OR_RETURN(const std::string from_end, im.Make(node, "Add", {index, size}));
  ASSIGN_OR_RETURN(const std::string within,
                   im.Make(node, "Where", {is_negative, from_end, index}));
  ASSIGN_OR_RETURN(const std::string column,
                   im.Make(node, "Unsqueeze", {within}, {{"axes", IntegersValue({-1})}}));
  ASSIGN_OR_RETURN(const std::string is_hot, im.Make(node, "Equal", {column, numbers}));
  ASSIGN_OR_RETURN(const std::string off,
                   im.Scalar(node, values->at(0).values[0], values->floating()));
  ASSIGN_OR_RETURN(const std::string on,
                   im.Scalar(node, values->at(0).values[1], values->floating()));
  return im.Add(node, "Where", {is_hot, on, off}, {im.Output(node, 0)});
}

absl::Status Trilu(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  ASSIGN_OR_RETURN(const double diagonal, im.Number(node, 1, 0));
  const int64_t rank = std::ssize(shape);
  if (rank < 2 || shape[rank - 1].of_batch || shape[rank - 2].of_batch) {
    return NodeFault(node, "needs a matrix of fixed size");
  }
  if (ElementsOf({shape[rank - 2].value, shape[rank - 1].value}) > int64_t{1} << 24) {
    return NodeFault(node, "needs a mask of over 2^24 elements");
  }
  const bool upper = Integer(node, "upper", 1) != 0;
  NumberArray mask{.shape = {shape[rank - 2].value, shape[rank - 1].value}};
  for (int64_t row = 0; row < mask.shape[0]; ++row) {
    for (int64_t column = 0; column < mask.shape[1]; ++column) {
      const auto across = static_cast<double>(column - row);
      mask.values.push_back(upper ? across >= diagonal : across <= diagonal);
    }
  }
  ASSIGN_OR_RETURN(const std::string keeps, im.Constant(node, false, mask));
  ASSIGN_OR_RETURN(const std::string zero, im.Scalar(node, 0, im.TypeOf(x) != v1::DTYPE_I32));
  return im.Add(node, "Where", {keeps, x, zero}, {im.Output(node, 0)});
}

}  // namespace

void AddIndexConverters(ConverterTable& table) {
  table["Gather"] = Gather;
  table["GatherElements"] = GatherElements;
  table["GatherND"] = GatherNd;
  table["OneHot"] = OneHot;
  table["ScatterElements"] = ScatterElements;
  table["ScatterND"] = ScatterNd;
  table["Trilu"] = Trilu;
}

}  // namespace muster
