// How each ONNX operator becomes operators of lib/graph/ops.md.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/graph/onnx/folded_value.h"
#include "lib/graph/onnx/importer.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using onnx::NodeProto;
using onnx::TensorProto;
using Attributes = std::vector<std::pair<std::string, v1::Attribute>>;

// Names ONNX and Muster share.
absl::Status Same(OnnxImporter& im, const NodeProto& node, absl::string_view op,
                  const Attributes& attributes = {}) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  return im.Add(node, op, {x}, {im.Output(node, 0)}, attributes).status();
}

absl::StatusOr<int64_t> Rank(OnnxImporter& im, const NodeProto& node, int input) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, input));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  return std::ssize(shape);
}

// Sets the output when every input is a constant; false: some are not.
template <typename F>
absl::StatusOr<bool> Fold(OnnxImporter& im, const NodeProto& node, F f) {
  std::vector<const FoldedValue*> inputs;
  for (int i = 0; i < node.input_size(); ++i) {
    if (!OnnxImporter::HasInput(node, i)) continue;
    if (im.Folded(node, i) == nullptr) return false;
    inputs.push_back(im.Folded(node, i));
  }
  absl::StatusOr<FoldedValue> folded = f(inputs);
  if (!folded.ok()) return OnnxImporter::Fault(node, folded.status().message());
  im.SetFolded(node, 0, *std::move(folded));
  return true;
}

// ---------------------------------------------------------------- constants and shapes

absl::Status Constant(OnnxImporter& im, const NodeProto& node) {
  FoldedValue value;
  for (const onnx::AttributeProto& attribute : node.attribute()) {
    if (attribute.name() == "value") {
      const TensorProto& tensor = attribute.t();
      for (int64_t size : tensor.dims()) value.shape.push_back({size});
      value.floating = IsFloating(tensor.data_type());
      if (ElementsOf(tensor) == 0) break;
      if (value.floating) {
        ASSIGN_OR_RETURN(const std::vector<float> numbers, im.file().Floats(tensor));
        value.numbers.assign(numbers.begin(), numbers.end());
      } else {
        ASSIGN_OR_RETURN(const std::vector<int64_t> integers, im.file().Integers(tensor));
        for (int64_t integer : integers) value.integers.push_back({integer});
      }
    } else if (attribute.name() == "value_int") {
      value.integers = {{attribute.i()}};
    } else if (attribute.name() == "value_ints") {
      value.shape = {{attribute.ints_size()}};
      for (int64_t integer : attribute.ints()) value.integers.push_back({integer});
    } else if (attribute.name() == "value_float") {
      value.floating = true;
      value.numbers = {attribute.f()};
    } else if (attribute.name() == "value_floats") {
      value.shape = {{attribute.floats_size()}};
      value.floating = true;
      value.numbers.assign(attribute.floats().begin(), attribute.floats().end());
    } else {
      return OnnxImporter::Fault(node, absl::StrCat("holds a '", attribute.name(), "'"));
    }
  }
  im.SetFolded(node, 0, std::move(value));
  return absl::OkStatus();
}

absl::Status ConstantOfShape(OnnxImporter& im, const NodeProto& node) {
  const FoldedValue* shape = im.Folded(node, 0);
  if (shape == nullptr || shape->floating)
    return OnnxImporter::Fault(node, "has a shape of its run");
  FoldedValue value{.shape = shape->integers, .floating = true, .fill = 0};
  for (const onnx::AttributeProto& attribute : node.attribute()) {
    if (attribute.name() != "value") continue;
    value.floating = IsFloating(attribute.t().data_type());
    if (value.floating) {
      ASSIGN_OR_RETURN(const std::vector<float> numbers, im.file().Floats(attribute.t()));
      value.fill = numbers.at(0);
    } else {
      ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, im.file().Integers(attribute.t()));
      value.fill = static_cast<double>(numbers.at(0));
    }
  }
  im.SetFolded(node, 0, std::move(value));
  return absl::OkStatus();
}

absl::Status Shape(OnnxImporter& im, const NodeProto& node) {
  std::vector<Extent> shape;
  if (const FoldedValue* folded = im.Folded(node, 0)) {
    shape = folded->shape;
  } else {
    ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
    ASSIGN_OR_RETURN(shape, im.ShapeOf(x));
  }
  const int64_t rank = std::ssize(shape);
  const auto clamp = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank);
  };
  const int64_t begin = clamp(im.Integer(node, "start", 0));
  const int64_t end = std::max(begin, clamp(im.Integer(node, "end", rank)));
  im.SetFolded(node, 0, FoldedValue::Vector({shape.begin() + begin, shape.begin() + end}));
  return absl::OkStatus();
}

absl::Status Range(OnnxImporter& im, const NodeProto& node) {
  std::vector<int64_t> bounds;
  for (int i = 0; i < 3; ++i) {
    const FoldedValue* folded = im.Folded(node, i);
    if (folded == nullptr) return OnnxImporter::Fault(node, "counts to a number of its run");
    absl::StatusOr<std::vector<int64_t>> bound = PlainIntegers(*folded);
    if (!bound.ok()) return OnnxImporter::Fault(node, bound.status().message());
    bounds.push_back(bound->at(0));
  }
  const int64_t count = bounds[2] == 0 ? -1 : (bounds[1] - bounds[0]) / bounds[2];
  if (count < 0 || count > (1 << 24)) return OnnxImporter::Fault(node, "has impossible bounds");
  std::vector<Extent> integers;
  for (int64_t at = bounds[0]; bounds[2] > 0 ? at < bounds[1] : at > bounds[1]; at += bounds[2]) {
    integers.push_back({at});
  }
  im.SetFolded(node, 0, FoldedValue::Vector(std::move(integers)));
  return absl::OkStatus();
}

absl::Status Identity(OnnxImporter& im, const NodeProto& node) {
  if (const FoldedValue* folded = im.Folded(node, 0)) {
    im.SetFolded(node, 0, *folded);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  im.Alias(node, 0, x);
  return absl::OkStatus();
}

absl::Status Cast(OnnxImporter& im, const NodeProto& node) {
  const int64_t to = im.Integer(node, "to", TensorProto::FLOAT);
  const bool floating = IsFloating(static_cast<int32_t>(to));
  if (const FoldedValue* folded = im.Folded(node, 0)) {
    FoldedValue y = *folded;
    if (floating && !y.floating) {
      for (const Extent& extent : y.integers) {
        if (extent.of_batch) return OnnxImporter::Fault(node, "computes with the batch size");
        y.numbers.push_back(static_cast<double>(extent.value));
      }
      y.integers.clear();
    } else if (!floating && y.floating) {
      for (double number : y.numbers) {
        y.integers.push_back(
            {to == TensorProto::BOOL ? number != 0 : static_cast<int64_t>(std::trunc(number))});
      }
      y.numbers.clear();
    } else if (to == TensorProto::BOOL) {
      for (Extent& extent : y.integers) extent = {extent.of_batch || extent.value != 0};
    }
    y.floating = floating;
    im.SetFolded(node, 0, std::move(y));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  if (im.TypeOf(x) == (floating ? v1::DTYPE_F32 : v1::DTYPE_I32)) {
    im.Alias(node, 0, x);
    return absl::OkStatus();
  }
  return Same(im, node, "Cast", {{"to", WordValue(floating ? "f32" : "i32")}});
}

// ---------------------------------------------------------------- elementwise

absl::Status Unary(OnnxImporter& im, const NodeProto& node) {
  if (IsFoldedElementwise(node.op_type())) {
    ASSIGN_OR_RETURN(const bool folded, Fold(im, node, [&](const auto& inputs) {
                       return FoldElementwise(node.op_type(), inputs);
                     }));
    if (folded) return absl::OkStatus();
  }
  return Same(im, node, node.op_type());
}

absl::Status FoldedOnly(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const bool folded, Fold(im, node, [&](const auto& inputs) {
                     return FoldElementwise(node.op_type(), inputs);
                   }));
  if (folded) return absl::OkStatus();
  return OnnxImporter::Fault(node, "is understood for constants alone");
}

absl::Status Binary(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const bool folded, Fold(im, node, [&](const auto& inputs) {
                     return FoldElementwise(node.op_type(), inputs);
                   }));
  if (folded) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string a, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::string b, im.Tensor(node, 1));
  return im.Add(node, node.op_type(), {a, b}, {im.Output(node, 0)}).status();
}

absl::Status Sum(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(std::string sum, im.Tensor(node, 0));
  for (int i = 1; i < node.input_size(); ++i) {
    ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, i));
    const bool last = i + 1 == node.input_size();
    const std::string y = last ? im.Output(node, 0) : im.Intermediate(node, "sum");
    RETURN_IF_ERROR(im.Add(node, "Add", {sum, x}, {y}).status());
    sum = y;
  }
  if (node.input_size() == 1) im.Alias(node, 0, sum);
  return absl::OkStatus();
}

absl::Status Reciprocal(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::string one, im.Scalar(node, 1));
  return im.Add(node, "Div", {one, x}, {im.Output(node, 0)}).status();
}

absl::Status Where(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const bool folded, Fold(im, node, [&](const auto& inputs) {
                     return FoldElementwise("Where", inputs);
                   }));
  if (folded) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> inputs, im.Tensors(node));
  return im.Add(node, "Where", inputs, {im.Output(node, 0)}).status();
}

absl::Status Gelu(OnnxImporter& im, const NodeProto& node) {
  return Same(im, node, "Gelu",
              {{"exact", IntegerValue(im.Word(node, "approximate", "none") == "none")}});
}

absl::Status Dropout(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  double rate = 0.5;
  if (const FoldedValue* ratio = im.Folded(node, 1)) {
    rate = ratio->fill ? *ratio->fill : ratio->numbers.at(0);
  } else if (OnnxImporter::HasInput(node, 1)) {
    return OnnxImporter::Fault(node, "computes its ratio while it runs");
  }
  if (rate == 0) {
    im.Alias(node, 0, x);
    return absl::OkStatus();
  }
  // Philox streams are told apart by the salt: the name's hash, the same in every process.
  uint32_t salt = 2166136261u;
  for (unsigned char c : node.output(0)) salt = (salt ^ c) * 16777619u;
  return im
      .Add(node, "Dropout", {x}, {im.Output(node, 0)},
           {{"rate", NumberValue(rate)}, {"salt", IntegerValue(salt >> 1)}})
      .status();
}

// ---------------------------------------------------------------- matrix products

absl::Status Gemm(OnnxImporter& im, const NodeProto& node) {
  if (im.Number(node, "alpha", 1) != 1 || im.Number(node, "beta", 1) != 1) {
    return OnnxImporter::Fault(node, "has an alpha or beta that is not 1");
  }
  ASSIGN_OR_RETURN(const std::string a, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::string b, im.Tensor(node, 1));
  const int64_t transpose_a = im.Integer(node, "transA", 0);
  const int64_t transpose_b = im.Integer(node, "transB", 0);
  const bool has_bias = OnnxImporter::HasInput(node, 2);
  std::string bias;
  if (has_bias) {
    ASSIGN_OR_RETURN(bias, im.Tensor(node, 2));
  }
  if (transpose_a == 0 && transpose_b == 1) {
    std::vector<std::string> inputs = {a, b};
    bool vector = true;
    if (has_bias) {
      ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(bias));
      ASSIGN_OR_RETURN(const std::vector<Extent> weight, im.ShapeOf(b));
      vector = shape.size() == 1 && shape[0] == weight[0];
      inputs.push_back(bias);
    }
    if (vector) return im.Add(node, "Linear", inputs, {im.Output(node, 0)}).status();
  }
  const std::string product = has_bias ? im.Intermediate(node, "product") : im.Output(node, 0);
  RETURN_IF_ERROR(im.Add(node, "MatMul", {a, b}, {product},
                         {{"transpose_a", IntegerValue(transpose_a)},
                          {"transpose_b", IntegerValue(transpose_b)}})
                      .status());
  if (!has_bias) return absl::OkStatus();
  return im.Add(node, "Add", {product, bias}, {im.Output(node, 0)}).status();
}

absl::Status MatMul(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string a, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::string b, im.Tensor(node, 1));
  for (const std::string& operand : {a, b}) {
    ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(operand));
    if (shape.size() < 2) return OnnxImporter::Fault(node, "multiplies a vector");
  }
  return im.Add(node, "MatMul", {a, b}, {im.Output(node, 0)}).status();
}

// ---------------------------------------------------------------- images

absl::StatusOr<int64_t> ImageRank(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const int64_t rank, Rank(im, node, 0));
  if (rank != 4) {
    return OnnxImporter::Fault(
        node, absl::StrCat("has an input of ", rank,
                           " dimensions: only images [B, C, H, W] can be imported"));
  }
  return rank;
}

// top, left, bottom, right, by attribute or by auto_pad.
absl::StatusOr<std::vector<int64_t>> Padding(OnnxImporter& im, const NodeProto& node,
                                             absl::Span<const int64_t> kernel,
                                             absl::Span<const int64_t> strides,
                                             absl::Span<const int64_t> dilations) {
  const std::string automatic = im.Word(node, "auto_pad", "NOTSET");
  if (automatic == "NOTSET") {
    return im.Integers(node, "pads").value_or(std::vector<int64_t>{0, 0, 0, 0});
  }
  if (automatic == "VALID") return std::vector<int64_t>{0, 0, 0, 0};
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  std::vector<int64_t> padding(4);
  for (int d = 0; d < 2; ++d) {
    const int64_t size = shape[2 + d].value;
    const int64_t outputs = (size + strides[d] - 1) / strides[d];
    const int64_t total = std::max<int64_t>(
        0, (outputs - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1 - size);
    const int64_t smaller = total / 2;
    padding[d] = automatic == "SAME_UPPER" ? smaller : total - smaller;
    padding[2 + d] = total - padding[d];
  }
  return padding;
}

absl::Status Conv(OnnxImporter& im, const NodeProto& node) {
  RETURN_IF_ERROR(ImageRank(im, node).status());
  ASSIGN_OR_RETURN(const std::vector<std::string> inputs, im.Tensors(node));
  ASSIGN_OR_RETURN(const std::vector<Extent> weight, im.ShapeOf(inputs.at(1)));
  const std::vector<int64_t> kernel = {weight.at(2).value, weight.at(3).value};
  const auto strides = im.Integers(node, "strides").value_or(std::vector<int64_t>{1, 1});
  const auto dilations = im.Integers(node, "dilations").value_or(std::vector<int64_t>{1, 1});
  if (strides.size() != 2 || dilations.size() != 2) {
    return OnnxImporter::Fault(node, "has strides or dilations that are not two");
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> padding,
                   Padding(im, node, kernel, strides, dilations));
  return im
      .Add(node, "Conv2d", inputs, {im.Output(node, 0)},
           {{"strides", IntegersValue(strides)},
            {"padding", IntegersValue(padding)},
            {"dilations", IntegersValue(dilations)},
            {"groups", IntegerValue(im.Integer(node, "group", 1))}})
      .status();
}

absl::Status Pool(OnnxImporter& im, const NodeProto& node) {
  RETURN_IF_ERROR(ImageRank(im, node).status());
  const bool is_max = node.op_type() == "MaxPool";
  const auto kernel = im.Integers(node, "kernel_shape").value_or(std::vector<int64_t>{});
  const auto strides = im.Integers(node, "strides").value_or(std::vector<int64_t>{1, 1});
  const auto dilations = im.Integers(node, "dilations").value_or(std::vector<int64_t>{1, 1});
  if (kernel.size() != 2 || strides.size() != 2 || dilations != std::vector<int64_t>{1, 1}) {
    return OnnxImporter::Fault(node, "has dilations, or a kernel or strides that are not two");
  }
  if (is_max && node.output_size() > 1 && !node.output(1).empty()) {
    return OnnxImporter::Fault(node, "gives the positions of its maxima");
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> padding,
                   Padding(im, node, kernel, strides, dilations));
  Attributes attributes = {{"kernel", IntegersValue(kernel)},
                           {"strides", IntegersValue(strides)},
                           {"padding", IntegersValue(padding)},
                           {"ceil", IntegerValue(im.Integer(node, "ceil_mode", 0))}};
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  std::vector<std::string> outputs = {im.Output(node, 0)};
  if (is_max) {
    outputs.push_back(im.Intermediate(node, "state"));
  } else {
    attributes.emplace_back("count_padding",
                            IntegerValue(im.Integer(node, "count_include_pad", 0)));
  }
  return im.Add(node, is_max ? "MaxPool2d" : "AveragePool2d", {x}, outputs, attributes).status();
}

absl::Status GlobalAveragePool(OnnxImporter& im, const NodeProto& node) {
  RETURN_IF_ERROR(ImageRank(im, node).status());
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  const std::string pooled = im.Intermediate(node, "pooled");
  RETURN_IF_ERROR(im.Add(node, "GlobalAveragePool2d", {x}, {pooled}).status());
  return im
      .Add(node, "Unsqueeze", {pooled}, {im.Output(node, 0)}, {{"axes", IntegersValue({2, 3})}})
      .status();
}

// ---------------------------------------------------------------- normalisation

absl::Status BatchNormalization(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::vector<std::string> in, im.Tensors(node));
  if (in.size() != 5) return OnnxImporter::Fault(node, "needs five inputs");
  const double momentum = 1 - im.Number(node, "momentum", 0.9);
  if (!(momentum > 0 && momentum <= 1)) return OnnxImporter::Fault(node, "has a momentum of 1");
  RETURN_IF_ERROR(im.MakeStatistic(node, 3, momentum));
  RETURN_IF_ERROR(im.MakeStatistic(node, 4, momentum));
  const std::string y = im.Output(node, 0);
  return im
      .Add(node, "BatchNorm", {in[0], in[3], in[4], in[2], in[1]},
           {y, im.Intermediate(node, "mean"), im.Intermediate(node, "rstd"),
            im.Intermediate(node, "variance"), im.Intermediate(node, "state")},
           {{"epsilon", NumberValue(im.Number(node, "epsilon", 1e-5))}})
      .status();
}

absl::Status LayerNormalization(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::vector<std::string> in, im.Tensors(node));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(in.at(0)));
  const int64_t axis = im.Integer(node, "axis", -1);
  if (axis != -1 && axis != std::ssize(shape) - 1) {
    return OnnxImporter::Fault(node, "normalises over more than the last dimension");
  }
  return im
      .Add(node, "LayerNorm", in,
           {im.Output(node, 0), im.Intermediate(node, "mean"), im.Intermediate(node, "rstd")},
           {{"epsilon", NumberValue(im.Number(node, "epsilon", 1e-5))}})
      .status();
}

absl::Status GroupNorm(OnnxImporter& im, const NodeProto& node, int64_t groups) {
  ASSIGN_OR_RETURN(const std::vector<std::string> in, im.Tensors(node));
  return im
      .Add(node, "GroupNorm", in,
           {im.Output(node, 0), im.Intermediate(node, "mean"), im.Intermediate(node, "rstd")},
           {{"groups", IntegerValue(groups)},
            {"epsilon", NumberValue(im.Number(node, "epsilon", 1e-5))}})
      .status();
}

absl::Status GroupNormalization(OnnxImporter& im, const NodeProto& node) {
  if (im.file().opset() < 21) {
    return OnnxImporter::Fault(node, "scales by group before opset 21: export with opset 21");
  }
  return GroupNorm(im, node, im.Integer(node, "num_groups", 1));
}

absl::Status InstanceNormalization(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  if (shape.size() < 3) return OnnxImporter::Fault(node, "needs [B, C, ...]");
  return GroupNorm(im, node, shape[1].value);
}

// ---------------------------------------------------------------- reductions

absl::Status Reduce(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const int64_t rank, Rank(im, node, 0));
  ASSIGN_OR_RETURN(auto axes, im.IntegersOf(node, 1, "axes"));
  if (!axes || axes->empty()) {
    if (im.Integer(node, "noop_with_empty_axes", 0) != 0) {
      im.Alias(node, 0, x);
      return absl::OkStatus();
    }
    axes.emplace(rank);
    std::iota(axes->begin(), axes->end(), 0);
  }
  return im
      .Add(
          node, node.op_type(), {x}, {im.Output(node, 0)},
          {{"axes", IntegersValue(*axes)}, {"keep", IntegerValue(im.Integer(node, "keepdims", 1))}})
      .status();
}

absl::Status Softmax(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const int64_t rank, Rank(im, node, 0));
  int64_t axis = im.Integer(node, "axis", -1);
  if (axis < 0) axis += rank;
  if (axis == rank - 1) return im.Add(node, node.op_type(), {x}, {im.Output(node, 0)}).status();
  if (axis < 0 || axis >= rank) return OnnxImporter::Fault(node, "has an axis outside its input");
  std::vector<int64_t> permutation(rank);
  std::iota(permutation.begin(), permutation.end(), 0);
  std::swap(permutation[axis], permutation.back());
  const Attributes swap = {{"permutation", IntegersValue(permutation)}};
  const std::string last = im.Intermediate(node, "transposed");
  const std::string y = im.Intermediate(node, "softmax");
  RETURN_IF_ERROR(im.Add(node, "Transpose", {x}, {last}, swap).status());
  RETURN_IF_ERROR(im.Add(node, node.op_type(), {last}, {y}).status());
  return im.Add(node, "Transpose", {y}, {im.Output(node, 0)}, swap).status();
}

// ---------------------------------------------------------------- shape

// The sizes of a Reshape: -1 and 0 as ops.md has them, the batch as one of them.
absl::StatusOr<std::vector<int64_t>> ReshapeSizes(OnnxImporter& im, const NodeProto& node,
                                                  const std::vector<Extent>& from,
                                                  std::vector<Extent> to) {
  const bool keeps_zero = im.Integer(node, "allowzero", 0) == 0;
  // A file traced with a fixed batch has that number where the batch belongs.
  if (!to.empty() && !to[0].of_batch && im.traced_batch() > 0 && !from.empty() &&
      from[0].of_batch && to[0].value > 0 && to[0].value == im.traced_batch() * from[0].value &&
      std::ranges::none_of(to, &Extent::of_batch)) {
    to[0] = from[0];
  }
  bool has_rest = std::ranges::count(to, Extent{-1}) > 0;
  std::vector<int64_t> sizes;
  for (size_t d = 0; d < to.size(); ++d) {
    if (!to[d].of_batch) {
      if (to[d].value == 0 && !keeps_zero)
        return OnnxImporter::Fault(node, "makes an empty tensor");
      sizes.push_back(to[d].value);
    } else if (d < from.size() && from[d] == to[d]) {
      sizes.push_back(0);
    } else if (!has_rest) {
      sizes.push_back(-1);
      has_rest = true;
    } else {
      // [batch, -1]: what -1 stands for is known, since the rest of both shapes is.
      int64_t rest = 1;
      for (const Extent& extent : from) rest *= extent.value;
      for (const Extent& extent : to)
        rest /= extent.value < 0 ? 1 : std::max<int64_t>(1, extent.value);
      std::ranges::replace(sizes, -1, rest);
      for (size_t later = d + 1; later < to.size(); ++later) {
        if (to[later] == Extent{-1}) to[later] = {rest};
      }
      sizes.push_back(-1);
    }
  }
  return sizes;
}

absl::Status Reshape(OnnxImporter& im, const NodeProto& node) {
  const FoldedValue* shape = im.Folded(node, 1);
  if (shape == nullptr || shape->floating || shape->fill) {
    return OnnxImporter::Fault(node, "has a shape that is computed while it runs");
  }
  if (const FoldedValue* x = im.Folded(node, 0)) {
    std::vector<Extent> to = shape->integers;
    int64_t rest = x->elements();
    for (size_t d = 0; d < to.size(); ++d) {
      if (to[d] == Extent{0} && d < x->shape.size()) to[d] = x->shape[d];
      if (to[d].value > 0) rest /= to[d].value;
    }
    std::ranges::replace(to, Extent{-1}, Extent{rest});
    absl::StatusOr<FoldedValue> y = FoldReshape(*x, std::move(to));
    if (!y.ok()) return OnnxImporter::Fault(node, y.status().message());
    im.SetFolded(node, 0, *std::move(y));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> from, im.ShapeOf(x));
  ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, ReshapeSizes(im, node, from, shape->integers));
  return im.Add(node, "Reshape", {x}, {im.Output(node, 0)}, {{"shape", IntegersValue(sizes)}})
      .status();
}

absl::Status Flatten(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const int64_t rank, Rank(im, node, 0));
  int64_t axis = im.Integer(node, "axis", 1);
  if (axis < 0) axis += rank;
  return Same(im, node, "Flatten", {{"axis", IntegerValue(axis)}});
}

absl::Status Squeeze(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(auto axes, im.IntegersOf(node, 1, "axes"));
  const bool adds = node.op_type() == "Unsqueeze";
  if (const FoldedValue* x = im.Folded(node, 0)) {
    std::vector<Extent> shape = x->shape;
    const int64_t rank = x->rank() + (adds && axes ? std::ssize(*axes) : 0);
    if (!axes) {
      axes.emplace();
      for (int64_t d = 0; d < rank; ++d) {
        if (shape[d] == Extent{1}) axes->push_back(d);
      }
    }
    for (int64_t& axis : *axes) axis += axis < 0 ? rank : 0;
    std::ranges::sort(*axes);
    if (!axes->empty() && (axes->front() < 0 || axes->back() >= rank)) {
      return OnnxImporter::Fault(node, "has an axis outside its input");
    }
    if (adds) {
      for (int64_t axis : *axes) shape.insert(shape.begin() + axis, Extent{1});
    } else {
      for (auto axis = axes->rbegin(); axis != axes->rend(); ++axis) {
        shape.erase(shape.begin() + *axis);
      }
    }
    FoldedValue y = *x;
    y.shape = std::move(shape);
    im.SetFolded(node, 0, std::move(y));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  if (!axes) {
    ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
    axes.emplace();
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == Extent{1}) axes->push_back(d);
    }
  }
  return im.Add(node, node.op_type(), {x}, {im.Output(node, 0)}, {{"axes", IntegersValue(*axes)}})
      .status();
}

absl::Status Transpose(OnnxImporter& im, const NodeProto& node) {
  const FoldedValue* folded = im.Folded(node, 0);
  int64_t rank = 0;
  if (folded != nullptr) {
    rank = folded->rank();
  } else {
    ASSIGN_OR_RETURN(rank, Rank(im, node, 0));
  }
  std::vector<int64_t> reversed(rank);
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  const std::vector<int64_t> permutation = im.Integers(node, "perm").value_or(reversed);
  if (folded != nullptr) {
    absl::StatusOr<FoldedValue> y = FoldTranspose(*folded, permutation);
    if (!y.ok()) return OnnxImporter::Fault(node, y.status().message());
    im.SetFolded(node, 0, *std::move(y));
    return absl::OkStatus();
  }
  return Same(im, node, "Transpose", {{"permutation", IntegersValue(permutation)}});
}

absl::Status Concat(OnnxImporter& im, const NodeProto& node) {
  const int64_t axis = im.Integer(node, "axis", 0);
  ASSIGN_OR_RETURN(const bool folded,
                   Fold(im, node, [&](const auto& inputs) { return FoldConcat(inputs, axis); }));
  if (folded) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> inputs, im.Tensors(node));
  return im.Add(node, "Concat", inputs, {im.Output(node, 0)}, {{"axis", IntegerValue(axis)}})
      .status();
}

absl::Status Split(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  int64_t axis = im.Integer(node, "axis", 0);
  if (axis < 0) axis += std::ssize(shape);
  if (axis < 0 || axis >= std::ssize(shape) || shape[axis].of_batch) {
    return OnnxImporter::Fault(node, "splits along the batch, or outside its input");
  }
  ASSIGN_OR_RETURN(auto sizes, im.IntegersOf(node, 1, "split"));
  if (!sizes) {
    const int64_t parts = node.output_size();
    const int64_t each = (shape[axis].value + parts - 1) / parts;
    sizes.emplace(parts, each);
    sizes->back() = shape[axis].value - each * (parts - 1);
  }
  std::vector<std::string> outputs;
  for (int i = 0; i < node.output_size(); ++i) outputs.push_back(im.Output(node, i));
  return im
      .Add(node, "Split", {x}, outputs,
           {{"axis", IntegerValue(axis)}, {"sizes", IntegersValue(*sizes)}})
      .status();
}

absl::Status Slice(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const auto starts, im.IntegersOf(node, 1, "starts"));
  ASSIGN_OR_RETURN(const auto ends, im.IntegersOf(node, 2, "ends"));
  ASSIGN_OR_RETURN(auto axes, im.IntegersOf(node, 3, "axes"));
  ASSIGN_OR_RETURN(auto steps, im.IntegersOf(node, 4, "steps"));
  if (!starts || !ends || starts->size() != ends->size()) {
    return OnnxImporter::Fault(node, "lacks starts or ends");
  }
  if (!axes) {
    axes.emplace(starts->size());
    std::iota(axes->begin(), axes->end(), 0);
  }
  if (!steps) steps.emplace(starts->size(), 1);
  if (axes->size() != starts->size() || steps->size() != starts->size()) {
    return OnnxImporter::Fault(node, "has lists of different lengths");
  }
  if (const FoldedValue* x = im.Folded(node, 0)) {
    absl::StatusOr<FoldedValue> y = FoldSlice(*x, *axes, *starts, *ends, *steps);
    if (!y.ok()) return OnnxImporter::Fault(node, y.status().message());
    im.SetFolded(node, 0, *std::move(y));
    return absl::OkStatus();
  }
  return Same(im, node, "Slice",
              {{"axes", IntegersValue(*axes)},
               {"starts", IntegersValue(*starts)},
               {"ends", IntegersValue(*ends)},
               {"steps", IntegersValue(*steps)}});
}

absl::Status Gather(OnnxImporter& im, const NodeProto& node) {
  const int64_t axis = im.Integer(node, "axis", 0);
  ASSIGN_OR_RETURN(const bool folded, Fold(im, node, [&](const auto& inputs) {
                     return FoldGather(*inputs[0], *inputs[1], axis);
                   }));
  if (folded) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::string index, im.Tensor(node, 1));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  ASSIGN_OR_RETURN(const std::vector<Extent> ids, im.ShapeOf(index));
  // A table of rows has the faster operator, whose ids are never negative when they are data.
  if (axis == 0 && shape.size() == 2 && !ids.empty() && im.Folded(node, 1) == nullptr) {
    return im.Add(node, "Embedding", {index, x}, {im.Output(node, 0)}).status();
  }
  return im.Add(node, "Gather", {x, index}, {im.Output(node, 0)}, {{"axis", IntegerValue(axis)}})
      .status();
}

absl::Status Pad(OnnxImporter& im, const NodeProto& node) {
  if (im.Word(node, "mode", "constant") != "constant") {
    return OnnxImporter::Fault(node, "pads with other than a constant");
  }
  ASSIGN_OR_RETURN(const int64_t rank, Rank(im, node, 0));
  ASSIGN_OR_RETURN(const auto pads, im.IntegersOf(node, 1, "pads"));
  ASSIGN_OR_RETURN(auto axes, im.IntegersOf(node, 3, "axes"));
  double value = 0;
  if (const FoldedValue* constant = im.Folded(node, 2)) {
    value = constant->fill       ? *constant->fill
            : constant->floating ? constant->numbers.at(0)
                                 : static_cast<double>(constant->integers.at(0).value);
  }
  if (!axes) {
    axes.emplace(rank);
    std::iota(axes->begin(), axes->end(), 0);
  }
  if (!pads || pads->size() != 2 * axes->size()) {
    return OnnxImporter::Fault(node, "lacks its pads");
  }
  std::vector<int64_t> padding(2 * rank);
  for (size_t i = 0; i < axes->size(); ++i) {
    const int64_t axis = (*axes)[i] + ((*axes)[i] < 0 ? rank : 0);
    if (axis < 0 || axis >= rank) return OnnxImporter::Fault(node, "has an axis outside its input");
    padding[axis] = (*pads)[i];
    padding[rank + axis] = (*pads)[axes->size() + i];
  }
  return Same(im, node, "Pad",
              {{"padding", IntegersValue(padding)}, {"value", NumberValue(value)}});
}

absl::Status Expand(OnnxImporter& im, const NodeProto& node) {
  const FoldedValue* shape = im.Folded(node, 1);
  if (shape == nullptr || shape->floating || shape->fill) {
    return OnnxImporter::Fault(node, "has a shape that is computed while it runs");
  }
  if (const FoldedValue* x = im.Folded(node, 0)) {
    absl::StatusOr<FoldedValue> y = FoldExpand(*x, shape->integers);
    if (!y.ok()) return OnnxImporter::Fault(node, y.status().message());
    im.SetFolded(node, 0, *std::move(y));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> own, im.ShapeOf(x));
  std::vector<int64_t> sizes;
  const int64_t added = std::ssize(shape->integers) - std::ssize(own);
  for (int64_t d = 0; d < std::ssize(shape->integers); ++d) {
    const Extent size = shape->integers[d];
    const bool is_own = d >= added && own[d - added] == size;
    if (size.of_batch && !is_own) {
      return OnnxImporter::Fault(node, "repeats a tensor along the batch");
    }
    sizes.push_back(is_own && size.of_batch ? 1 : size.value);
  }
  return Same(im, node, "Expand", {{"shape", IntegersValue(sizes)}});
}

// ---------------------------------------------------------------- recurrence

// Rows of a weight or bias by gate, in another order. `axis` holds the gates.
absl::StatusOr<std::string> Regate(OnnxImporter& im, const NodeProto& node, const std::string& x,
                                   absl::string_view what, int64_t hidden,
                                   const std::vector<int>& order) {
  std::vector<std::string> parts, picked;
  for (size_t i = 0; i < order.size(); ++i) {
    parts.push_back(im.Intermediate(node, absl::StrCat(what, ".gate", i)));
  }
  for (int gate : order) picked.push_back(parts[gate]);
  const std::string y = im.Intermediate(node, what);
  RETURN_IF_ERROR(im.Add(node, "Split", {x}, parts,
                         {{"axis", IntegerValue(1)},
                          {"sizes", IntegersValue(std::vector<int64_t>(order.size(), hidden))}})
                      .status());
  RETURN_IF_ERROR(im.Add(node, "Concat", picked, {y}, {{"axis", IntegerValue(1)}}).status());
  return y;
}

// ONNX: [T, B, I] in, [T, D, B, H] out; ours: [B, T, I] in, [B, T, D H] out.
absl::Status Recurrent(OnnxImporter& im, const NodeProto& node) {
  const bool is_lstm = node.op_type() == "LSTM";
  const std::string direction = im.Word(node, "direction", "forward");
  if (im.Integer(node, "layout", 0) != 0 || OnnxImporter::HasInput(node, 4) ||
      OnnxImporter::HasInput(node, 7) || im.Integer(node, "input_forget", 0) != 0 ||
      (!is_lstm && im.Integer(node, "linear_before_reset", 0) != 1)) {
    return OnnxImporter::Fault(
        node,
        "has sequence lengths, peepholes, layout 1, input_forget or (GRU) a reset before "
        "the product: only what torch.nn.LSTM and torch.nn.GRU export can be imported");
  }
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(std::string w, im.Tensor(node, 1));
  ASSIGN_OR_RETURN(std::string r, im.Tensor(node, 2));
  const int64_t hidden = im.Integer(node, "hidden_size", 0);
  const int64_t directions = direction == "bidirectional" ? 2 : 1;
  // i, o, f, c -> i, f, c, o; z, r, h -> r, z, h.
  const std::vector<int> order = is_lstm ? std::vector<int>{0, 2, 3, 1} : std::vector<int>{1, 0, 2};
  std::vector<int> twice = order;
  for (int gate : order) twice.push_back(gate + static_cast<int>(order.size()));
  ASSIGN_OR_RETURN(w, Regate(im, node, w, "w", hidden, order));
  ASSIGN_OR_RETURN(r, Regate(im, node, r, "r", hidden, order));
  std::string bias;
  if (OnnxImporter::HasInput(node, 3)) {
    ASSIGN_OR_RETURN(const std::string b, im.Tensor(node, 3));
    ASSIGN_OR_RETURN(bias, Regate(im, node, b, "bias", hidden, twice));
  } else {
    bias = im.Intermediate(node, "bias");
    RETURN_IF_ERROR(im.Add(node, "Constant", {}, {bias},
                           {{"shape", IntegersValue({directions, std::ssize(twice) * hidden})},
                            {"value", NumberValue(0)}})
                        .status());
  }
  const std::string batch_first = im.Intermediate(node, "batch_first");
  RETURN_IF_ERROR(
      im.Add(node, "Transpose", {x}, {batch_first}, {{"permutation", IntegersValue({1, 0, 2})}})
          .status());
  std::vector<std::string> inputs = {batch_first, w, r, bias};
  for (int i = 5; i <= (is_lstm ? 6 : 5); ++i) {
    const FoldedValue* initial = im.Folded(node, i);
    if (!OnnxImporter::HasInput(node, i) || (initial != nullptr && initial->fill == 0.0)) continue;
    if (inputs.size() != static_cast<size_t>(i - 1)) {
      return OnnxImporter::Fault(node, "has only one of its two initial states");
    }
    ASSIGN_OR_RETURN(inputs.emplace_back(), im.Tensor(node, i));
  }
  const std::string y = im.Intermediate(node, "y");
  std::vector<std::string> outputs = {y, im.Output(node, 1)};
  if (is_lstm) outputs.push_back(im.Output(node, 2));
  outputs.push_back(im.Intermediate(node, "state"));
  RETURN_IF_ERROR(im.Add(node, is_lstm ? "Lstm" : "Gru", inputs, outputs,
                         {{"reverse", IntegerValue(direction == "reverse")}})
                      .status());
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(y));
  const std::string split = im.Intermediate(node, "directions");
  RETURN_IF_ERROR(im.Add(node, "Reshape", {y}, {split},
                         {{"shape", IntegersValue({0, shape[1].value, directions, hidden})}})
                      .status());
  return im
      .Add(node, "Transpose", {split}, {im.Output(node, 0)},
           {{"permutation", IntegersValue({1, 2, 0, 3})}})
      .status();
}

}  // namespace

OnnxConverter FindOnnxConverter(absl::string_view op_type) {
  static const auto& converters = *new absl::flat_hash_map<absl::string_view, OnnxConverter>{
      {"Add", Binary},
      {"And", FoldedOnly},
      {"AveragePool", Pool},
      {"BatchNormalization", BatchNormalization},
      {"Cast", Cast},
      {"Ceil", FoldedOnly},
      {"Concat", Concat},
      {"Constant", Constant},
      {"ConstantOfShape", ConstantOfShape},
      {"Conv", Conv},
      {"Div", Binary},
      {"Dropout", Dropout},
      {"Equal", FoldedOnly},
      {"Erf", Unary},
      {"Exp", Unary},
      {"Expand", Expand},
      {"Flatten", Flatten},
      {"Floor", FoldedOnly},
      {"GRU", Recurrent},
      {"Gather", Gather},
      {"Gelu", Gelu},
      {"Gemm", Gemm},
      {"GlobalAveragePool", GlobalAveragePool},
      {"Greater", FoldedOnly},
      {"GreaterOrEqual", FoldedOnly},
      {"GroupNormalization", GroupNormalization},
      {"Identity", Identity},
      {"InstanceNormalization", InstanceNormalization},
      {"LSTM", Recurrent},
      {"LayerNormalization", LayerNormalization},
      {"Less", FoldedOnly},
      {"LessOrEqual", FoldedOnly},
      {"Log", Unary},
      {"LogSoftmax", Softmax},
      {"MatMul", MatMul},
      {"Max", FoldedOnly},
      {"MaxPool", Pool},
      {"Min", FoldedOnly},
      {"Mul", Binary},
      {"Neg", Unary},
      {"Not", FoldedOnly},
      {"Or", FoldedOnly},
      {"Pad", Pad},
      {"Pow", Binary},
      {"Range", Range},
      {"Reciprocal", Reciprocal},
      {"ReduceMax", Reduce},
      {"ReduceMean", Reduce},
      {"ReduceSum", Reduce},
      {"Relu", Unary},
      {"Reshape", Reshape},
      {"Shape", Shape},
      {"Sigmoid", Unary},
      {"Slice", Slice},
      {"Softmax", Softmax},
      {"Split", Split},
      {"Sqrt", Unary},
      {"Squeeze", Squeeze},
      {"Sub", Binary},
      {"Sum", Sum},
      {"Tanh", Unary},
      {"Transpose", Transpose},
      {"Unsqueeze", Squeeze},
      {"Where", Where},
  };
  const auto found = converters.find(op_type);
  return found == converters.end() ? nullptr : found->second;
}

}  // namespace muster
