#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/graph/onnx/converters/converters.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using onnx::NodeProto;
using List = std::vector<int64_t>;

// A window over d spatial dimensions. Each list has d numbers; padding has the numbers before each
// dimension, followed by those behind each.
struct Window {
  std::vector<int64_t> kernel, strides, dilations, padding;
};

// Returns the node's window. An empty `kernel` means the node's attribute. `sizes` has the input's
// spatial sizes, for auto_pad. Returns INVALID_ARGUMENT for lists of other lengths.
absl::StatusOr<Window> WindowOf(const NodeProto& node, List kernel,
                                const std::vector<Extent>& sizes) {
  const size_t spatial = sizes.size();
  if (kernel.empty()) kernel = Integers(node, "kernel_shape").value_or(List{});
  Window window{.kernel = std::move(kernel),
                .strides = Integers(node, "strides").value_or(List(spatial, 1)),
                .dilations = Integers(node, "dilations").value_or(List(spatial, 1)),
                .padding = Integers(node, "pads").value_or(List(2 * spatial, 0))};
  if (window.kernel.size() != spatial || window.strides.size() != spatial ||
      window.dilations.size() != spatial || window.padding.size() != 2 * spatial) {
    return NodeFault(node, "has a kernel, strides, dilations or pads for other dimensions");
  }
  for (const List* sizes_of : {&window.kernel, &window.strides, &window.dilations}) {
    if (std::ranges::any_of(*sizes_of, [](int64_t size) { return size < 1; })) {
      return NodeFault(node, "has a kernel, stride or dilation below 1");
    }
  }
  const std::string automatic = Word(node, "auto_pad", "NOTSET");
  if (automatic == "VALID") window.padding.assign(2 * spatial, 0);
  if (automatic != "SAME_UPPER" && automatic != "SAME_LOWER") return window;
  for (size_t d = 0; d < spatial; ++d) {
    const int64_t size = sizes[d].value, stride = window.strides[d];
    const int64_t outputs = (size + stride - 1) / stride;
    const int64_t total = std::max<int64_t>(
        0, (outputs - 1) * stride + (window.kernel[d] - 1) * window.dilations[d] + 1 - size);
    const int64_t smaller = total / 2;
    window.padding[d] = automatic == "SAME_UPPER" ? smaller : total - smaller;
    window.padding[spatial + d] = total - window.padding[d];
  }
  return window;
}

Attributes ImageAttributes(const Window& window) {
  return {{"strides", IntegersValue(window.strides)},
          {"padding", IntegersValue(window.padding)},
          {"dilations", IntegersValue(window.dilations)}};
}

// Returns a window over a signal as a window over images of one row.
Window OverRows(Window window) {
  window.kernel.insert(window.kernel.begin(), 1);
  window.strides.insert(window.strides.begin(), 1);
  window.dilations.insert(window.dilations.begin(), 1);
  window.padding = {0, window.padding[0], 0, window.padding[1]};
  return window;
}

absl::StatusOr<std::string> WithRows(OnnxImporter& im, const NodeProto& node,
                                     const std::string& x) {
  return im.Make(node, "Unsqueeze", {x}, {{"axes", IntegersValue({2})}});
}

absl::Status WithoutRows(OnnxImporter& im, const NodeProto& node, const std::string& y) {
  return im.Add(node, "Squeeze", {y}, {im.Output(node, 0)}, {{"axes", IntegersValue({2})}});
}

absl::StatusOr<std::string> SliceOf(OnnxImporter& im, const NodeProto& node, const std::string& x,
                                    int64_t axis, int64_t start, int64_t end, int64_t step) {
  return im.Make(node, "Slice", {x},
                 {{"axes", IntegersValue({axis})},
                  {"starts", IntegersValue({start})},
                  {"ends", IntegersValue({end})},
                  {"steps", IntegersValue({step})}});
}

// A convolution of volumes is the sum of convolutions of images, one for each plane of the kernel.
absl::Status VolumeConv(OnnxImporter& im, const NodeProto& node, std::string x,
                        const std::string& weight, const std::string& bias, const Window& window) {
  ASSIGN_OR_RETURN(const std::vector<Extent> from, im.ShapeOf(x));
  const Window plane{
      .kernel = {window.kernel[1], window.kernel[2]},
      .strides = {window.strides[1], window.strides[2]},
      .dilations = {window.dilations[1], window.dilations[2]},
      .padding = {window.padding[1], window.padding[2], window.padding[4], window.padding[5]}};
  if (window.padding[0] != 0 || window.padding[3] != 0) {
    ASSIGN_OR_RETURN(x, im.Make(node, "Pad", {x},
                                {{"padding", IntegersValue({0, 0, window.padding[0], 0, 0, 0, 0,
                                                            window.padding[3], 0, 0})}}));
  }
  const int64_t depth = from[2].value + window.padding[0] + window.padding[3];
  const int64_t reach = (window.kernel[0] - 1) * window.dilations[0] + 1;
  const int64_t planes = (depth - reach) / window.strides[0] + 1;
  if (depth < reach) return NodeFault(node, "has a kernel that is deeper than its input");
  ASSIGN_OR_RETURN(x, im.Transposed(node, x, {0, 2, 1, 3, 4}));
  std::string sum;
  for (int64_t k = 0; k < window.kernel[0]; ++k) {
    const int64_t start = k * window.dilations[0];
    const int64_t end = start + (planes - 1) * window.strides[0] + 1;
    ASSIGN_OR_RETURN(const std::string part,
                     SliceOf(im, node, x, 1, start, end, window.strides[0]));
    ASSIGN_OR_RETURN(const std::string images,
                     im.Reshaped(node, part, {{planes, true}, from[1], from[3], from[4]}));
    ASSIGN_OR_RETURN(const std::string slice, SliceOf(im, node, weight, 2, k, k + 1, 1));
    ASSIGN_OR_RETURN(const std::string kernel,
                     im.Make(node, "Squeeze", {slice}, {{"axes", IntegersValue({2})}}));
    std::vector<std::string> inputs = {images, kernel};
    if (k == 0 && !bias.empty()) inputs.push_back(bias);
    Attributes attributes = ImageAttributes(plane);
    attributes.emplace_back("groups", IntegerValue(Integer(node, "group", 1)));
    ASSIGN_OR_RETURN(const std::string y, im.Make(node, "Conv2d", inputs, attributes));
    if (k == 0) {
      sum = y;
    } else {
      ASSIGN_OR_RETURN(sum, im.Make(node, "Add", {sum, y}));
    }
  }
  ASSIGN_OR_RETURN(const std::vector<Extent> to, im.ShapeOf(sum));
  ASSIGN_OR_RETURN(const std::string volumes,
                   im.Reshaped(node, sum, {{1, true}, {planes}, to[1], to[2], to[3]}));
  return im.Add(node, "Transpose", {volumes}, {im.Output(node, 0)},
                {{"permutation", IntegersValue({0, 2, 1, 3, 4})}});
}

absl::Status Conv(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(std::string weight, im.Tensor(node, 1));
  std::string bias;
  if (HasInput(node, 2)) {
    ASSIGN_OR_RETURN(bias, im.Tensor(node, 2));
  }
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  ASSIGN_OR_RETURN(const std::vector<Extent> kernel, im.ShapeOf(weight));
  const int64_t spatial = std::ssize(shape) - 2;
  const bool transposed = node.op_type() == "ConvTranspose";
  if (spatial < 1 || spatial > (transposed ? 2 : 3) || kernel.size() != shape.size()) {
    return NodeFault(node, absl::StrCat("has an input of ", shape.size(),
                                        " dimensions: signals, images and (convolved) volumes "
                                        "can be imported"));
  }
  List sizes;
  for (int64_t d = 0; d < spatial; ++d) sizes.push_back(kernel[2 + d].value);
  ASSIGN_OR_RETURN(Window window, WindowOf(node, sizes, {shape.begin() + 2, shape.end()}));
  if (spatial == 3) return VolumeConv(im, node, x, weight, bias, window);
  List extra = Integers(node, "output_padding").value_or(List(spatial, 0));
  const bool is_automatic = absl::StartsWith(Word(node, "auto_pad", "NOTSET"), "SAME");
  if (transposed && (FindAttribute(node, "output_shape") != nullptr || is_automatic)) {
    return NodeFault(node, "gives its output_shape or auto_pad: export it with pads");
  }
  if (spatial == 1) {
    window = OverRows(std::move(window));
    extra.insert(extra.begin(), 0);
    ASSIGN_OR_RETURN(x, WithRows(im, node, x));
    ASSIGN_OR_RETURN(weight, WithRows(im, node, weight));
  }
  std::vector<std::string> inputs = {x, weight};
  if (!bias.empty()) inputs.push_back(bias);
  Attributes attributes = ImageAttributes(window);
  attributes.emplace_back("groups", IntegerValue(Integer(node, "group", 1)));
  if (transposed) attributes.emplace_back("output_padding", IntegersValue(extra));
  const absl::string_view op = transposed ? "ConvTranspose2d" : "Conv2d";
  if (spatial == 2) return im.Add(node, op, inputs, {im.Output(node, 0)}, attributes);
  ASSIGN_OR_RETURN(const std::string y, im.Make(node, op, inputs, attributes));
  return WithoutRows(im, node, y);
}

// ---------------------------------------------------------------- pooling

absl::Status Pool(OnnxImporter& im, const NodeProto& node) {
  const bool is_max = node.op_type() == "MaxPool";
  ASSIGN_OR_RETURN(std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  const int64_t spatial = std::ssize(shape) - 2;
  if (spatial < 1 || spatial > 2) {
    return NodeFault(node, absl::StrCat("has an input of ", shape.size(),
                                        " dimensions: signals and images can be imported"));
  }
  ASSIGN_OR_RETURN(Window window, WindowOf(node, {}, {shape.begin() + 2, shape.end()}));
  if (!is_max && std::ranges::any_of(window.dilations, [](int64_t d) { return d != 1; })) {
    return NodeFault(node, "has dilations");
  }
  if (spatial == 1) {
    window = OverRows(std::move(window));
    ASSIGN_OR_RETURN(x, WithRows(im, node, x));
  }
  Attributes attributes = {{"kernel", IntegersValue(window.kernel)},
                           {"strides", IntegersValue(window.strides)},
                           {"padding", IntegersValue(window.padding)},
                           {"ceil", IntegerValue(Integer(node, "ceil_mode", 0))}};
  if (is_max) {
    attributes.emplace_back("dilations", IntegersValue(window.dilations));
  } else {
    attributes.emplace_back("count_padding", IntegerValue(Integer(node, "count_include_pad", 0)));
  }
  const std::string y = spatial == 2 ? im.Output(node, 0) : im.Intermediate(node, "pooled");
  std::vector<std::string> outputs = {y};
  if (is_max) outputs.push_back(im.Intermediate(node, "state"));
  RETURN_IF_ERROR(im.Add(node, is_max ? "MaxPool2d" : "AveragePool2d", {x}, outputs, attributes));
  return spatial == 2 ? absl::OkStatus() : WithoutRows(im, node, y);
}

absl::Status GlobalPool(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const int64_t rank, im.Rank(node, 0));
  const bool is_max = node.op_type() == "GlobalMaxPool";
  if (rank == 4 && !is_max) {
    ASSIGN_OR_RETURN(const std::string pooled, im.Make(node, "GlobalAveragePool2d", {x}));
    return im.Add(node, "Unsqueeze", {pooled}, {im.Output(node, 0)},
                  {{"axes", IntegersValue({2, 3})}});
  }
  if (rank < 3) return NodeFault(node, "needs [B, C, ...]");
  List axes(rank - 2);
  std::iota(axes.begin(), axes.end(), 2);
  return im.Add(node, is_max ? "ReduceMax" : "ReduceMean", {x}, {im.Output(node, 0)},
                {{"axes", IntegersValue(axes)}, {"keep", IntegerValue(1)}});
}

// ---------------------------------------------------------------- resizing

constexpr int64_t kResizedMax = int64_t{1} << 24;

// Maps an output position to input positions, by ONNX's definition of Resize.
class Sampler {
 public:
  // A `scale` of 0 means that the sizes define the scale.
  Sampler(const NodeProto& node, int64_t from, int64_t to, double scale)
      : from_(from),
        to_(to),
        scale_(scale),
        coordinates_(Word(node, "coordinate_transformation_mode", "half_pixel")),
        nearest_(Word(node, "nearest_mode", "round_prefer_floor")),
        mode_(Word(node, "mode", "nearest")),
        cubic_(Number(node, "cubic_coeff_a", -0.75)),
        excludes_(Integer(node, "exclude_outside", 0) != 0) {}

  bool IsKnown() const {
    return coordinates_ == "half_pixel" || coordinates_ == "pytorch_half_pixel" ||
           coordinates_ == "align_corners" || coordinates_ == "asymmetric";
  }

  // Returns the position that mode "nearest" takes.
  double Picked(int64_t i) const {
    return static_cast<double>(std::clamp<int64_t>(Nearest(Position(i)), 0, from_ - 1));
  }

  // Returns row i of the matrix [to, from] that maps inputs to outputs.
  std::vector<double> Row(int64_t i) const {
    std::vector<double> row(from_, 0.0);
    const double x = Position(i);
    const auto clamp = [&](int64_t at) { return std::clamp<int64_t>(at, 0, from_ - 1); };
    if (mode_ == "linear") {
      const double at = std::clamp(x, 0.0, static_cast<double>(from_ - 1));
      const auto low = static_cast<int64_t>(std::floor(at));
      row[low] += 1 - (at - low);
      row[clamp(low + 1)] += at - low;
    } else {
      const auto low = static_cast<int64_t>(std::floor(x));
      double sum = 0;
      for (int64_t tap = low - 1; tap <= low + 2; ++tap) {
        if (excludes_ && (tap < 0 || tap >= from_)) continue;
        const double weight = Cubic(std::abs(x - tap));
        row[clamp(tap)] += weight;
        sum += weight;
      }
      if (excludes_) {
        for (double& weight : row) weight /= sum;
      }
    }
    return row;
  }

 private:
  double Position(int64_t i) const {
    if (coordinates_ == "asymmetric") return Scaled(static_cast<double>(i));
    if (coordinates_ == "align_corners") {
      return to_ == 1 ? 0 : static_cast<double>(i) * (from_ - 1) / (to_ - 1);
    }
    if (coordinates_ == "pytorch_half_pixel" && to_ == 1) return 0;
    return Scaled(static_cast<double>(i) + 0.5) - 0.5;
  }

  // Returns x divided by the scale. If the sizes define the scale, multiplies first: a rounded
  // scale could just miss the next row.
  double Scaled(double x) const {
    return scale_ == 0 ? x * static_cast<double>(from_) / static_cast<double>(to_) : x / scale_;
  }

  int64_t Nearest(double x) const {
    if (nearest_ == "floor") return static_cast<int64_t>(std::floor(x));
    if (nearest_ == "ceil") return static_cast<int64_t>(std::ceil(x));
    if (nearest_ == "round_prefer_ceil") return static_cast<int64_t>(std::floor(x + 0.5));
    return static_cast<int64_t>(std::ceil(x - 0.5));
  }

  // The cubic convolution kernel of Keys, 1981.
  double Cubic(double x) const {
    const double a = cubic_;
    if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
    return 0;
  }

  int64_t from_, to_;
  double scale_;
  std::string coordinates_, nearest_, mode_;
  double cubic_;
  bool excludes_;
};

// Resizes one dimension. If every output row is a copy of an input row, picks rows. Otherwise
// multiplies by a constant matrix.
absl::StatusOr<std::string> Resized(OnnxImporter& im, const NodeProto& node, const std::string& x,
                                    int64_t axis, int64_t to, double scale) {
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  const int64_t from = shape[axis].value, rank = std::ssize(shape);
  if (from == to && (scale == 0 || scale == 1)) return x;
  const Sampler sampler(node, from, to, scale);
  if (!sampler.IsKnown()) {
    return NodeFault(node, absl::StrCat("has coordinates '",
                                        Word(node, "coordinate_transformation_mode", ""), "'"));
  }
  if (std::max(from, to) > kResizedMax) return NodeFault(node, "resizes more than 2^24 positions");
  if (Word(node, "mode", "nearest") == "nearest") {
    NumberArray picked{.shape = {to}};
    for (int64_t i = 0; i < to; ++i) picked.values.push_back(sampler.Picked(i));
    ASSIGN_OR_RETURN(const std::string index, im.Constant(node, false, picked));
    return im.Make(node, "Gather", {x, index}, {{"axis", IntegerValue(axis)}});
  }
  if (to > kResizedMax / from) return NodeFault(node, "would need a matrix of over 2^24 elements");
  NumberArray matrix{.shape = {to, from}};
  for (int64_t i = 0; i < to; ++i) {
    const std::vector<double> row = sampler.Row(i);
    matrix.values.insert(matrix.values.end(), row.begin(), row.end());
  }
  ASSIGN_OR_RETURN(const std::string weights, im.Constant(node, true, matrix));
  if (axis == rank - 1) {
    return im.Make(node, "MatMul", {x, weights}, {{"transpose_b", IntegerValue(1)}});
  }
  if (axis == rank - 2) return im.Make(node, "MatMul", {weights, x});
  List swapped(rank);
  std::iota(swapped.begin(), swapped.end(), 0);
  std::swap(swapped[axis], swapped.back());
  ASSIGN_OR_RETURN(const std::string last, im.Transposed(node, x, swapped));
  ASSIGN_OR_RETURN(const std::string y,
                   im.Make(node, "MatMul", {last, weights}, {{"transpose_b", IntegerValue(1)}}));
  return im.Transposed(node, y, swapped);
}

absl::Status Resize(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  const std::string mode = Word(node, "mode", "nearest");
  if ((mode != "nearest" && mode != "linear" && mode != "cubic") ||
      Integer(node, "antialias", 0) != 0 ||
      Word(node, "keep_aspect_ratio_policy", "stretch") != "stretch") {
    return NodeFault(node, absl::StrCat("has the mode '", mode, "', antialiasing or a kept ratio"));
  }
  const FoldedValue* scales = im.Folded(node, 2);
  const bool by_scale = scales != nullptr && !scales->at(0).values.empty();
  std::vector<Extent> sizes;
  if (!by_scale) {
    ASSIGN_OR_RETURN(sizes, im.ExtentsOf(node, 3));
  } else if (scales->depends_on_batch()) {
    return NodeFault(node, "has scales that depend on the batch");
  }
  const List axes = Integers(node, "axes").value_or([&] {
    List all(shape.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }());
  if (axes.size() != (by_scale ? scales->at(0).values.size() : sizes.size())) {
    return NodeFault(node, "has sizes or scales for other dimensions than it has");
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = axes[i] < 0 ? axes[i] + std::ssize(shape) : axes[i];
    if (axis < 0 || axis >= std::ssize(shape)) return NodeFault(node, "has an axis outside");
    if (by_scale ? scales->at(0).values[i] == 1 : sizes[i] == shape[axis]) continue;
    if (shape[axis].of_batch) return NodeFault(node, "resizes the batch");
    // A size that a scale defines is a product of floats, as in onnxruntime.
    const double scale = by_scale ? scales->at(0).values[i] : 0;
    const int64_t to = by_scale
                           ? static_cast<int64_t>(std::floor(static_cast<float>(shape[axis].value) *
                                                             static_cast<float>(scale)))
                           : sizes[i].value;
    if (to < 1) return NodeFault(node, "makes an empty image");
    ASSIGN_OR_RETURN(x, Resized(im, node, x, axis, to, scale));
  }
  im.Alias(node, 0, x);
  return absl::OkStatus();
}

// Moves channels of [B, C, H, W] to blocks of n x n pixels, or back.
absl::Status DepthToSpace(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  const int64_t n = Integer(node, "blocksize", 1);
  if (shape.size() != 4 || n < 1 || n > 1024) return NodeFault(node, "needs [B, C, H, W]");
  const Extent &b = shape[0], &h = shape[2], &w = shape[3];
  const int64_t channels = shape[1].value;
  if (node.op_type() == "SpaceToDepth") {
    ASSIGN_OR_RETURN(const std::string split,
                     im.Reshaped(node, x, {b, {channels}, {h.value / n}, {n}, {w.value / n}, {n}}));
    ASSIGN_OR_RETURN(const std::string y, im.Transposed(node, split, {0, 3, 5, 1, 2, 4}));
    ASSIGN_OR_RETURN(const std::string joined,
                     im.Reshaped(node, y, {b, {channels * n * n}, {h.value / n}, {w.value / n}}));
    im.Alias(node, 0, joined);
    return absl::OkStatus();
  }
  const bool depth_first = Word(node, "mode", "DCR") == "DCR";
  const int64_t left = channels / (n * n);
  const std::vector<Extent> parts = depth_first ? std::vector<Extent>{b, {n}, {n}, {left}, h, w}
                                                : std::vector<Extent>{b, {left}, {n}, {n}, h, w};
  ASSIGN_OR_RETURN(const std::string split, im.Reshaped(node, x, parts));
  ASSIGN_OR_RETURN(
      const std::string y,
      im.Transposed(node, split, depth_first ? List{0, 3, 4, 1, 5, 2} : List{0, 1, 4, 2, 5, 3}));
  ASSIGN_OR_RETURN(const std::string joined,
                   im.Reshaped(node, y, {b, {left}, {h.value * n}, {w.value * n}}));
  im.Alias(node, 0, joined);
  return absl::OkStatus();
}

}  // namespace

void AddImageConverters(ConverterTable& table) {
  table["AveragePool"] = table["MaxPool"] = Pool;
  table["Conv"] = table["ConvTranspose"] = Conv;
  table["DepthToSpace"] = table["SpaceToDepth"] = DepthToSpace;
  table["GlobalAveragePool"] = table["GlobalMaxPool"] = GlobalPool;
  table["Resize"] = Resize;
}

}  // namespace muster
