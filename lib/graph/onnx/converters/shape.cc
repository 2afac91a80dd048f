#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/graph/onnx/converters/converters.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using onnx::NodeProto;
using List = std::vector<int64_t>;

constexpr int64_t kPaddedMax = int64_t{1} << 24;
// The most parts of a tensor that is split into a sequence: each becomes a tensor of the graph.
constexpr int64_t kPartsMax = 4096;

Extent Product(const std::vector<Extent>& shape) {
  Extent product{1};
  for (const Extent& extent : shape) {
    product.value *= extent.value < 0 ? 1 : extent.value;
    product.of_batch = product.of_batch || extent.of_batch;
  }
  return product;
}

// Finds the batch in the shape `to` of a file that was traced with a fixed batch, and marks it. The
// batch is a multiple of `traced`, and has as many elements before it in `to` as in `from`:
// otherwise samples would mix.
// Returns false if there is no such dimension.
bool RestoreBatch(const std::vector<Extent>& from, int64_t traced, std::vector<Extent>& to) {
  int64_t before = 1, elements = 1;
  bool passed = false;
  for (const Extent& extent : from) {
    passed = passed || extent.of_batch;
    if (!passed) before *= extent.value;
    elements *= extent.value;
  }
  int64_t known = 1;
  for (const Extent& extent : to) known *= extent.value == -1 ? 1 : extent.value;
  if (known < 1 || elements * traced % known != 0) return false;
  std::ranges::replace(to, Extent{-1}, Extent{elements * traced / known});
  int64_t own = 1;
  for (Extent& extent : to) {
    if (own == before && extent.value % traced == 0) {
      extent = {extent.value / traced, true};
      return true;
    }
    own *= extent.value;
  }
  return false;
}

absl::Status Reshape(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> from, im.ShapeOf(x));
  ASSIGN_OR_RETURN(std::vector<Extent> to, im.ExtentsOf(node, 1));
  const bool keeps = Integer(node, "allowzero", 0) == 0;
  for (size_t d = 0; d < to.size(); ++d) {
    if (to[d] == Extent{0} && keeps && d < from.size()) to[d] = from[d];
  }
  const Extent elements = Product(from);
  const bool has_batch = std::ranges::any_of(to, &Extent::of_batch);
  if (elements.of_batch && !has_batch && im.traced_batch() > 0 &&
      !RestoreBatch(from, im.traced_batch(), to)) {
    return NodeFault(node, "reshapes a tensor so that its batch cannot be found");
  }
  const Extent known = Product(to);
  if (std::ranges::count(to, Extent{-1}) > 1 || known.value < 1 ||
      elements.value % known.value != 0 || (known.of_batch && !elements.of_batch)) {
    return NodeFault(node, "reshapes a tensor to a shape that does not fit its elements");
  }
  std::ranges::replace(to, Extent{-1},
                       Extent{elements.value / known.value, elements.of_batch && !known.of_batch});
  if (to == from) {
    im.Alias(node, 0, x);
    return absl::OkStatus();
  }
  if (Product(to) != elements)
    return NodeFault(node, "reshapes a tensor to a shape that does not fit its elements");
  ASSIGN_OR_RETURN(const std::string y, im.Reshaped(node, x, to));
  im.Alias(node, 0, y);
  return absl::OkStatus();
}

absl::Status Flatten(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const int64_t rank, im.Rank(node, 0));
  int64_t axis = Integer(node, "axis", 1);
  if (axis < 0) axis += rank;
  return im.Add(node, "Flatten", {x}, {im.Output(node, 0)}, {{"axis", IntegerValue(axis)}});
}

absl::Status Squeeze(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(auto axes, im.IntegersOf(node, 1, "axes"));
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  if (!axes) {
    ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
    axes.emplace();
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == Extent{1}) axes->push_back(d);
    }
  }
  return im.Add(node, node.op_type(), {x}, {im.Output(node, 0)}, {{"axes", IntegersValue(*axes)}});
}

absl::Status Transpose(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const int64_t rank, im.Rank(node, 0));
  List reversed(rank);
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  return im.Add(node, "Transpose", {x}, {im.Output(node, 0)},
                {{"permutation", IntegersValue(Integers(node, "perm").value_or(reversed))}});
}

absl::Status Concat(OnnxImporter& im, const NodeProto& node) {
  std::vector<std::string> inputs;
  for (int i = 0; i < node.input_size(); ++i) {
    // Skips empty inputs, for example a cache, which is empty at the first step.
    const FoldedValue* folded = im.Folded(node, i);
    bool is_empty = folded != nullptr;
    for (int p = 0; p < kProbes; ++p) is_empty = is_empty && folded->at(p).values.empty();
    if (is_empty) continue;
    ASSIGN_OR_RETURN(inputs.emplace_back(), im.Tensor(node, i));
  }
  if (inputs.size() == 1) {
    im.Alias(node, 0, inputs[0]);
    return absl::OkStatus();
  }
  return im.Add(node, "Concat", inputs, {im.Output(node, 0)},
                {{"axis", IntegerValue(Integer(node, "axis", 0))}});
}

// Returns the dimension that Split or SplitToSequence cuts, counted from the front.
absl::StatusOr<int64_t> AxisToSplit(const NodeProto& node, const std::vector<Extent>& shape) {
  int64_t axis = Integer(node, "axis", 0);
  if (axis < 0) axis += std::ssize(shape);
  if (axis < 0 || axis >= std::ssize(shape) || shape[axis].of_batch) {
    return NodeFault(node, "splits along the batch, or outside its input");
  }
  return axis;
}

absl::Status Split(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  ASSIGN_OR_RETURN(const int64_t axis, AxisToSplit(node, shape));
  ASSIGN_OR_RETURN(auto sizes, im.IntegersOf(node, 1, "split"));
  if (!sizes) {
    const int64_t parts = node.output_size();
    const int64_t each = (shape[axis].value + parts - 1) / parts;
    sizes.emplace(parts, each);
    sizes->back() = shape[axis].value - each * (parts - 1);
  }
  std::vector<std::string> outputs;
  for (int i = 0; i < node.output_size(); ++i) outputs.push_back(im.Output(node, i));
  return im.Add(node, "Split", {x}, outputs,
                {{"axis", IntegerValue(axis)}, {"sizes", IntegersValue(*sizes)}});
}

// Converts SplitToSequence. PyTorch's exporter writes torch.split() and chunk() as a sequence whose
// elements are picked by constant positions.
absl::Status SplitToSequence(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  ASSIGN_OR_RETURN(const int64_t axis, AxisToSplit(node, shape));
  const int64_t length = shape[axis].value;
  ASSIGN_OR_RETURN(auto sizes, im.IntegersOf(node, 1, "split"));
  // One number is the size of every part but the last. Without this number, each part has one row.
  const FoldedValue* split = im.Folded(node, 1);
  if (!sizes || (split != nullptr && split->rank() == 0)) {
    const int64_t each = sizes ? sizes->at(0) : 1;
    if (each < 1 || length < 1 || (length - 1) / each >= kPartsMax) {
      return NodeFault(node, absl::StrCat("splits ", length, " rows into parts of ", each,
                                          "; there can be 1 to ", kPartsMax, " parts"));
    }
    sizes.emplace((length + each - 1) / each, each);
    sizes->back() = length - each * (std::ssize(*sizes) - 1);
  }
  if (sizes->empty() || std::ssize(*sizes) > kPartsMax) {
    return NodeFault(node, absl::StrCat("splits its input into ", sizes->size(),
                                        " parts; there can be 1 to ", kPartsMax));
  }
  std::vector<std::string> parts;
  for (size_t i = 0; i < sizes->size(); ++i) parts.push_back(im.Intermediate(node, "part"));
  RETURN_IF_ERROR(im.Add(node, "Split", {x}, parts,
                         {{"axis", IntegerValue(axis)}, {"sizes", IntegersValue(*sizes)}}));
  if (!HasInput(node, 1) && Integer(node, "keepdims", 1) == 0) {
    for (std::string& part : parts) {
      ASSIGN_OR_RETURN(part, im.Make(node, "Squeeze", {part}, {{"axes", IntegersValue({axis})}}));
    }
  }
  im.SetSequence(node, std::move(parts));
  return absl::OkStatus();
}

absl::Status SequenceAt(OnnxImporter& im, const NodeProto& node) {
  const std::vector<std::string>* parts = im.Sequence(node);
  if (parts == nullptr) return NodeFault(node, "indexes a sequence that no split has made");
  const FoldedValue* position = im.Folded(node, 1);
  if (position == nullptr || !position->Single()) {
    return NodeFault(node, "indexes a sequence by what is computed while it runs");
  }
  const int64_t size = std::ssize(*parts);
  const int64_t at = ToInteger(*position->Single());
  if (at < -size || at >= size) {
    return NodeFault(node, absl::StrCat("takes part ", at, " of ", size));
  }
  im.Alias(node, 0, (*parts)[at < 0 ? at + size : at]);
  return absl::OkStatus();
}

// Returns the rows of x that are at `positions` along `axis`, in that order.
absl::StatusOr<std::string> Picked(OnnxImporter& im, const NodeProto& node, const std::string& x,
                                   int64_t axis, const List& positions) {
  NumberArray index{.shape = {std::ssize(positions)}};
  index.values.assign(positions.begin(), positions.end());
  ASSIGN_OR_RETURN(const std::string constant, im.Constant(node, false, index));
  return im.Make(node, "Gather", {x, constant}, {{"axis", IntegerValue(axis)}});
}

// Converts a Slice with backward steps, which Muster's Slice does not have.
absl::StatusOr<std::string> Backwards(OnnxImporter& im, const NodeProto& node, const std::string& x,
                                      int64_t axis, int64_t start, int64_t end, int64_t step) {
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  if (axis < 0) axis += std::ssize(shape);
  if (axis < 0 || axis >= std::ssize(shape) || shape[axis].of_batch) {
    return NodeFault(node, "steps backwards along the batch, or outside its input");
  }
  const int64_t size = shape[axis].value;
  if (size > kPaddedMax) return NodeFault(node, "steps backwards over more than 2^24 positions");
  const auto clamp = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? std::max<int64_t>(at, -size - 1) + size : at, -1, size - 1);
  };
  List positions;
  for (int64_t at = clamp(start); at > clamp(end); at += step) positions.push_back(at);
  if (positions.empty()) return NodeFault(node, "makes an empty tensor");
  return Picked(im, node, x, axis, positions);
}

absl::Status Slice(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const auto starts, im.IntegersOf(node, 1, "starts"));
  ASSIGN_OR_RETURN(const auto ends, im.IntegersOf(node, 2, "ends"));
  ASSIGN_OR_RETURN(auto axes, im.IntegersOf(node, 3, "axes"));
  ASSIGN_OR_RETURN(auto steps, im.IntegersOf(node, 4, "steps"));
  if (!starts || !ends || starts->size() != ends->size()) {
    return NodeFault(node, "lacks starts or ends");
  }
  if (!axes) {
    axes.emplace(starts->size());
    std::iota(axes->begin(), axes->end(), 0);
  }
  if (!steps) steps.emplace(starts->size(), 1);
  if (axes->size() != starts->size() || steps->size() != starts->size()) {
    return NodeFault(node, "has lists of different lengths");
  }
  ASSIGN_OR_RETURN(std::string x, im.Tensor(node, 0));
  List own_axes, own_starts, own_ends, own_steps;
  for (size_t i = 0; i < axes->size(); ++i) {
    if ((*steps)[i] < 0) {
      ASSIGN_OR_RETURN(x,
                       Backwards(im, node, x, (*axes)[i], (*starts)[i], (*ends)[i], (*steps)[i]));
      continue;
    }
    own_axes.push_back((*axes)[i]);
    own_starts.push_back((*starts)[i]);
    own_ends.push_back((*ends)[i]);
    own_steps.push_back((*steps)[i]);
  }
  if (own_axes.empty()) {
    im.Alias(node, 0, x);
    return absl::OkStatus();
  }
  return im.Add(node, "Slice", {x}, {im.Output(node, 0)},
                {{"axes", IntegersValue(own_axes)},
                 {"starts", IntegersValue(own_starts)},
                 {"ends", IntegersValue(own_ends)},
                 {"steps", IntegersValue(own_steps)}});
}

// Returns the input position of each of the `size + before + behind` outputs.
absl::StatusOr<List> Mirrored(const NodeProto& node, const std::string& mode, int64_t size,
                              int64_t before, int64_t behind) {
  List positions;
  if (before > kPaddedMax || behind > kPaddedMax || size > kPaddedMax) {
    return NodeFault(node, "pads more than 2^24 positions");
  }
  for (int64_t i = -before; i < size + behind; ++i) {
    int64_t at = i;
    if (mode == "edge") {
      at = std::clamp<int64_t>(i, 0, size - 1);
    } else if (mode == "wrap") {
      at = ((i % size) + size) % size;
    } else if (i < 0 || i >= size) {
      at = i < 0 ? -i : 2 * (size - 1) - i;
      if (at < 0 || at >= size) return NodeFault(node, "reflects more than its input has");
    }
    positions.push_back(at);
  }
  return positions;
}

absl::Status Pad(OnnxImporter& im, const NodeProto& node) {
  const std::string mode = Word(node, "mode", "constant");
  ASSIGN_OR_RETURN(std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  const int64_t rank = std::ssize(shape);
  ASSIGN_OR_RETURN(const auto pads, im.IntegersOf(node, 1, "pads"));
  ASSIGN_OR_RETURN(auto axes, im.IntegersOf(node, 3, "axes"));
  ASSIGN_OR_RETURN(const double value, im.Number(node, 2, 0));
  if (!axes || axes->empty()) {
    axes.emplace(rank);
    std::iota(axes->begin(), axes->end(), 0);
  }
  if (!pads || pads->size() != 2 * axes->size()) return NodeFault(node, "lacks its pads");
  List padding(2 * rank);
  bool pads_something = false;
  for (size_t i = 0; i < axes->size(); ++i) {
    const int64_t axis = (*axes)[i] + ((*axes)[i] < 0 ? rank : 0);
    if (axis < 0 || axis >= rank) return NodeFault(node, "has an axis outside its input");
    int64_t before = (*pads)[i], behind = (*pads)[axes->size() + i];
    if (before == 0 && behind == 0) continue;
    if (shape[axis].of_batch) return NodeFault(node, "pads the batch");
    if (before < 0 || behind < 0) {
      ASSIGN_OR_RETURN(
          x,
          im.Make(node, "Slice", {x},
                  {{"axes", IntegersValue({axis})},
                   {"starts", IntegersValue({std::max<int64_t>(0, -before)})},
                   {"ends", IntegersValue({shape[axis].value + std::min<int64_t>(0, behind)})}}));
      before = std::max<int64_t>(0, before);
      behind = std::max<int64_t>(0, behind);
    }
    if (mode != "constant" && (before > 0 || behind > 0)) {
      ASSIGN_OR_RETURN(const std::vector<Extent> now, im.ShapeOf(x));
      ASSIGN_OR_RETURN(const List positions, Mirrored(node, mode, now[axis].value, before, behind));
      ASSIGN_OR_RETURN(x, Picked(im, node, x, axis, positions));
      continue;
    }
    padding[axis] = before;
    padding[rank + axis] = behind;
    pads_something = pads_something || before > 0 || behind > 0;
  }
  if (!pads_something) {
    im.Alias(node, 0, x);
    return absl::OkStatus();
  }
  constexpr double kLargest = std::numeric_limits<float>::max();
  return im.Add(node, "Pad", {x}, {im.Output(node, 0)},
                {{"padding", IntegersValue(padding)},
                 {"value", NumberValue(std::clamp(value, -kLargest, kLargest))}});
}

absl::Status Expand(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> own, im.ShapeOf(x));
  ASSIGN_OR_RETURN(std::vector<Extent> to, im.ExtentsOf(node, 1));
  // Broadcasting works both ways. If the shape has a 1, or fewer dimensions, the tensor's sizes
  // stay.
  if (to.size() < own.size()) to.insert(to.begin(), own.size() - to.size(), Extent{1});
  const int64_t added = std::ssize(to) - std::ssize(own);
  for (int64_t d = added; d < std::ssize(to); ++d) {
    const Extent& size = own[d - added];
    const bool traced =
        size == Extent{1, true} && im.traced_batch() > 0 && to[d] == Extent{im.traced_batch()};
    if (to[d] == Extent{1} || traced) to[d] = size;
  }
  if (to == own) {
    im.Alias(node, 0, x);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::string y, im.Expanded(node, x, to));
  im.Alias(node, 0, y);
  return absl::OkStatus();
}

// Converts [.., n, ..] to [.., 1, n, ..], then to [.., times, n, ..], then to [.., times n, ..].
absl::Status Tile(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  ASSIGN_OR_RETURN(const std::vector<Extent> times, im.ExtentsOf(node, 1));
  if (times.size() != shape.size()) return NodeFault(node, "repeats other dimensions than it has");
  std::vector<Extent> split, wide, joined;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (times[d] == Extent{1} || shape[d] == Extent{1}) {
      split.push_back(shape[d]);
      wide.push_back(times[d] == Extent{1} ? shape[d] : times[d]);
    } else {
      split.insert(split.end(), {Extent{1}, shape[d]});
      wide.insert(wide.end(), {times[d], shape[d]});
    }
    joined.push_back(Product({shape[d], times[d]}));
  }
  ASSIGN_OR_RETURN(const std::string apart, im.Reshaped(node, x, split));
  ASSIGN_OR_RETURN(const std::string repeated, im.Expanded(node, apart, wide));
  ASSIGN_OR_RETURN(const std::string y, im.Reshaped(node, repeated, joined));
  im.Alias(node, 0, y);
  return absl::OkStatus();
}

absl::Status Range(OnnxImporter&, const NodeProto& node) {
  return NodeFault(node, "counts to a number that is computed while it runs");
}

absl::Status ConstantOfShape(OnnxImporter&, const NodeProto& node) {
  return NodeFault(node, "has a shape that is computed while it runs");
}

absl::Status NonZero(OnnxImporter&, const NodeProto& node) {
  return NodeFault(node, "makes a tensor whose size depends on the data");
}

}  // namespace

void AddShapeConverters(ConverterTable& table) {
  table["Concat"] = Concat;
  table["ConstantOfShape"] = ConstantOfShape;
  table["Expand"] = Expand;
  table["Flatten"] = Flatten;
  table["NonZero"] = NonZero;
  table["Pad"] = Pad;
  table["Range"] = Range;
  table["Reshape"] = Reshape;
  table["Slice"] = Slice;
  table["Split"] = Split;
  table["SplitToSequence"] = SplitToSequence;
  table["SequenceAt"] = SequenceAt;
  table["Squeeze"] = table["Unsqueeze"] = Squeeze;
  table["Tile"] = Tile;
  table["Transpose"] = Transpose;
}

}  // namespace muster
