#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "lib/graph/onnx/converters/converters.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using onnx::NodeProto;
using onnx::TensorProto;

constexpr double kLargestFloat = std::numeric_limits<float>::max();

// Converts a node of one input and one output to Muster's operator `op`.
absl::Status One(OnnxImporter& im, const NodeProto& node, absl::string_view op,
                 const Attributes& attributes = {}) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  return im.Add(node, op, {x}, {im.Output(node, 0)}, attributes);
}

// Converts operators with the same name and meaning in ONNX and Muster.
absl::Status Same(OnnxImporter& im, const NodeProto& node) { return One(im, node, node.op_type()); }

absl::Status Identity(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  im.Alias(node, 0, x);
  return absl::OkStatus();
}

// Makes the tensor `x op y`, in which y is the constant `number`.
absl::StatusOr<std::string> WithNumber(OnnxImporter& im, const NodeProto& node,
                                       absl::string_view op, const std::string& x, double number) {
  ASSIGN_OR_RETURN(const std::string y, im.Scalar(node, number, im.TypeOf(x) != v1::DTYPE_I32));
  return im.Make(node, op, {x, y});
}

// Makes an i32 tensor that is 1 where x is 0.
absl::StatusOr<std::string> IsZero(OnnxImporter& im, const NodeProto& node, const std::string& x) {
  return WithNumber(im, node, "Equal", x, 0);
}

absl::Status Cast(OnnxImporter& im, const NodeProto& node) {
  const int64_t to = node.op_type() == "Cast" ? Integer(node, "to", TensorProto::FLOAT) : 0;
  bool floating = IsFloating(static_cast<int32_t>(to));
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  if (node.op_type() == "CastLike") {
    if (const FoldedValue* like = im.Folded(node, 1)) {
      floating = like->floating();
    } else {
      ASSIGN_OR_RETURN(const std::string other, im.Tensor(node, 1));
      floating = im.TypeOf(other) != v1::DTYPE_I32;
    }
  }
  if (to == TensorProto::BOOL) {
    ASSIGN_OR_RETURN(const std::string zero, IsZero(im, node, x));
    ASSIGN_OR_RETURN(const std::string truth, IsZero(im, node, zero));
    im.Alias(node, 0, truth);
    return absl::OkStatus();
  }
  if (im.TypeOf(x) == (floating ? v1::DTYPE_F32 : v1::DTYPE_I32)) {
    im.Alias(node, 0, x);
    return absl::OkStatus();
  }
  return One(im, node, "Cast", {{"to", WordValue(floating ? "f32" : "i32")}});
}

// ---------------------------------------------------------------- two or more inputs

absl::Status Two(OnnxImporter& im, const NodeProto& node, absl::string_view op,
                 bool exchanged = false) {
  ASSIGN_OR_RETURN(const std::string a, im.Operand(node, exchanged ? 1 : 0));
  ASSIGN_OR_RETURN(const std::string b, im.Operand(node, exchanged ? 0 : 1));
  return im.Add(node, op, {a, b}, {im.Output(node, 0)});
}

absl::Status Binary(OnnxImporter& im, const NodeProto& node) {
  return Two(im, node, node.op_type());
}

absl::Status Pow(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Operand(node, 0));
  const FoldedValue* exponent = im.Folded(node, 1);
  const auto number = exponent == nullptr ? absl::nullopt : exponent->Single();
  // Computes a square as a product, which is exact and has a gradient for negative x. Muster's Pow
  // uses the logarithm.
  if (number == 2.0 && exponent->rank() == 0) {
    return im.Add(node, "Mul", {x, x}, {im.Output(node, 0)});
  }
  if (number == 0.5 && exponent->rank() == 0)
    return im.Add(node, "Sqrt", {x}, {im.Output(node, 0)});
  ASSIGN_OR_RETURN(std::string y, im.Operand(node, 1));
  if (im.TypeOf(y) == v1::DTYPE_I32 && im.TypeOf(x) != v1::DTYPE_I32) {
    ASSIGN_OR_RETURN(y, im.Make(node, "Cast", {y}, {{"to", WordValue("f32")}}));
  }
  return im.Add(node, "Pow", {x, y}, {im.Output(node, 0)});
}

absl::Status Comparison(OnnxImporter& im, const NodeProto& node) {
  const std::string& op = node.op_type();
  if (op == "Greater") return Two(im, node, "Less", /*exchanged=*/true);
  if (op == "GreaterOrEqual") return Two(im, node, "LessOrEqual", /*exchanged=*/true);
  return Two(im, node, op);
}

// Converts logical operators to arithmetic, because truth values are 0 and 1.
absl::Status Logic(OnnxImporter& im, const NodeProto& node) {
  const std::string& op = node.op_type();
  if (op == "And") return Two(im, node, "Mul");
  if (op == "Or") return Two(im, node, "Maximum");
  if (op == "Xor") {
    ASSIGN_OR_RETURN(const std::string a, im.Operand(node, 0));
    ASSIGN_OR_RETURN(const std::string b, im.Operand(node, 1));
    ASSIGN_OR_RETURN(const std::string equal, im.Make(node, "Equal", {a, b}));
    ASSIGN_OR_RETURN(const std::string different, IsZero(im, node, equal));
    im.Alias(node, 0, different);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::string y, IsZero(im, node, x));
  im.Alias(node, 0, y);
  return absl::OkStatus();
}

// Converts Sum, Mean, Max and Min of any number of inputs.
absl::Status Several(OnnxImporter& im, const NodeProto& node) {
  const std::string& op = node.op_type();
  const absl::string_view own = op == "Max" ? "Maximum" : op == "Min" ? "Minimum" : "Add";
  ASSIGN_OR_RETURN(std::string y, im.Operand(node, 0));
  for (int i = 1; i < node.input_size(); ++i) {
    ASSIGN_OR_RETURN(const std::string x, im.Operand(node, i));
    ASSIGN_OR_RETURN(y, im.Make(node, own, {y, x}));
  }
  if (op == "Mean") {
    ASSIGN_OR_RETURN(y, WithNumber(im, node, "Mul", y, 1.0 / node.input_size()));
  }
  im.Alias(node, 0, y);
  return absl::OkStatus();
}

absl::Status Mod(OnnxImporter& im, const NodeProto& node) {
  if (Integer(node, "fmod", 0) != 0) return NodeFault(node, "has the sign of the dividend (fmod)");
  return Two(im, node, "Mod");
}

absl::Status Where(OnnxImporter& im, const NodeProto& node) {
  std::vector<std::string> inputs;
  for (int i = 0; i < 3; ++i) {
    ASSIGN_OR_RETURN(inputs.emplace_back(), im.Operand(node, i));
  }
  return im.Add(node, "Where", inputs, {im.Output(node, 0)});
}

absl::Status Reciprocal(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::string one, im.Scalar(node, 1, true));
  return im.Add(node, "Div", {one, x}, {im.Output(node, 0)});
}

absl::Status Clip(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(std::string x, im.Tensor(node, 0));
  const auto is_known = [&](int i) { return !HasInput(node, i) || im.Folded(node, i) != nullptr; };
  if (is_known(1) && is_known(2) && im.TypeOf(x) != v1::DTYPE_I32) {
    ASSIGN_OR_RETURN(const double low, im.Number(node, 1, -kLargestFloat));
    ASSIGN_OR_RETURN(const double high, im.Number(node, 2, kLargestFloat));
    if (low == 0 && high >= kLargestFloat) {
      return im.Add(node, "Relu", {x}, {im.Output(node, 0)});
    }
    return im.Add(node, "Clip", {x}, {im.Output(node, 0)},
                  {{"min", NumberValue(std::max(low, -kLargestFloat))},
                   {"max", NumberValue(std::min(high, kLargestFloat))}});
  }
  for (int i = 1; i <= 2; ++i) {
    if (!HasInput(node, i)) continue;
    ASSIGN_OR_RETURN(const std::string bound, im.Operand(node, i));
    ASSIGN_OR_RETURN(x, im.Make(node, i == 1 ? "Maximum" : "Minimum", {x, bound}));
  }
  im.Alias(node, 0, x);
  return absl::OkStatus();
}

// ---------------------------------------------------------------- activations

absl::Status Elu(OnnxImporter& im, const NodeProto& node) {
  return One(im, node, "Elu", {{"alpha", NumberValue(Number(node, "alpha", 1))}});
}

absl::Status Selu(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(
      const std::string elu,
      im.Make(node, "Elu", {x},
              {{"alpha", NumberValue(Number(node, "alpha", 1.67326319217681884765625))}}));
  ASSIGN_OR_RETURN(
      const std::string y,
      WithNumber(im, node, "Mul", elu, Number(node, "gamma", 1.05070102214813232421875)));
  im.Alias(node, 0, y);
  return absl::OkStatus();
}

// Converts Celu to alpha elu(x / alpha).
absl::Status Celu(OnnxImporter& im, const NodeProto& node) {
  const double alpha = Number(node, "alpha", 1);
  if (alpha == 0) return NodeFault(node, "has an alpha of 0");
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::string scaled, WithNumber(im, node, "Mul", x, 1 / alpha));
  ASSIGN_OR_RETURN(const std::string elu, im.Make(node, "Elu", {scaled}));
  ASSIGN_OR_RETURN(const std::string y, WithNumber(im, node, "Mul", elu, alpha));
  im.Alias(node, 0, y);
  return absl::OkStatus();
}

absl::Status LeakyRelu(OnnxImporter& im, const NodeProto& node) {
  return One(im, node, "LeakyRelu", {{"slope", NumberValue(Number(node, "alpha", 0.01))}});
}

absl::Status HardSigmoid(OnnxImporter& im, const NodeProto& node) {
  return One(im, node, "HardSigmoid",
             {{"alpha", NumberValue(Number(node, "alpha", 0.2))},
              {"beta", NumberValue(Number(node, "beta", 0.5))}});
}

absl::Status HardSwish(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::string gate,
                   im.Make(node, "HardSigmoid", {x},
                           {{"alpha", NumberValue(1.0 / 6)}, {"beta", NumberValue(0.5)}}));
  return im.Add(node, "Mul", {x, gate}, {im.Output(node, 0)});
}

absl::Status Mish(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::string plus, im.Make(node, "Softplus", {x}));
  ASSIGN_OR_RETURN(const std::string gate, im.Make(node, "Tanh", {plus}));
  return im.Add(node, "Mul", {x, gate}, {im.Output(node, 0)});
}

// x sigmoid(alpha x)
absl::Status Swish(OnnxImporter& im, const NodeProto& node) {
  const double alpha = Number(node, "alpha", 1);
  if (alpha == 1) return One(im, node, "Silu");
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::string scaled, WithNumber(im, node, "Mul", x, alpha));
  ASSIGN_OR_RETURN(const std::string gate, im.Make(node, "Sigmoid", {scaled}));
  return im.Add(node, "Mul", {x, gate}, {im.Output(node, 0)});
}

absl::Status Softsign(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::string size, im.Make(node, "Abs", {x}));
  ASSIGN_OR_RETURN(const std::string divisor, WithNumber(im, node, "Add", size, 1));
  return im.Add(node, "Div", {x, divisor}, {im.Output(node, 0)});
}

// Converts PRelu to relu(x) - slope relu(-x).
absl::Status PRelu(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::string slope, im.Operand(node, 1));
  ASSIGN_OR_RETURN(const std::string positive, im.Make(node, "Relu", {x}));
  ASSIGN_OR_RETURN(const std::string negated, im.Make(node, "Neg", {x}));
  ASSIGN_OR_RETURN(const std::string negative, im.Make(node, "Relu", {negated}));
  ASSIGN_OR_RETURN(const std::string sloped, im.Make(node, "Mul", {negative, slope}));
  return im.Add(node, "Sub", {positive, sloped}, {im.Output(node, 0)});
}

absl::Status IsNan(OnnxImporter& im, const NodeProto& node) { return One(im, node, "IsNan"); }

absl::Status Gelu(OnnxImporter& im, const NodeProto& node) {
  return One(im, node, "Gelu",
             {{"exact", IntegerValue(Word(node, "approximate", "none") == "none")}});
}

absl::Status Dropout(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const double rate, im.Number(node, 1, 0.5));
  if (rate == 0) {
    im.Alias(node, 0, x);
    return absl::OkStatus();
  }
  // The salt separates Philox streams. It is a hash of the name, the same in every process.
  uint32_t salt = 2166136261u;
  for (unsigned char c : node.output(0)) salt = (salt ^ c) * 16777619u;
  const Attributes attributes = {{"rate", NumberValue(rate)}, {"salt", IntegerValue(salt >> 1)}};
  // The random number of an element depends on its position in the global batch. So the batch must
  // be the outermost dimension, also if the sequence comes first.
  const std::vector<Extent> shape = im.ShapeOf(x).value_or(std::vector<Extent>());
  const auto batch = std::ranges::find_if(shape, &Extent::of_batch);
  if (batch == shape.begin() || batch == shape.end()) {
    return im.Add(node, "Dropout", {x}, {im.Output(node, 0)}, attributes);
  }
  const int64_t axis = batch - shape.begin();
  std::vector<int64_t> forward(shape.size()), back(shape.size());
  std::iota(forward.begin(), forward.end(), 0);
  std::rotate(forward.begin(), forward.begin() + axis, forward.begin() + axis + 1);
  for (size_t d = 0; d < forward.size(); ++d) back[forward[d]] = d;
  ASSIGN_OR_RETURN(const std::string first, im.Transposed(node, x, forward));
  ASSIGN_OR_RETURN(const std::string dropped, im.Make(node, "Dropout", {first}, attributes));
  ASSIGN_OR_RETURN(const std::string y, im.Transposed(node, dropped, back));
  im.Alias(node, 0, y);
  return absl::OkStatus();
}

}  // namespace

void AddElementwiseConverters(ConverterTable& table) {
  for (const char* op : {"Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "Log", "Neg", "Relu", "Round",
                         "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Tanh"}) {
    table[op] = Same;
  }
  for (const char* op : {"Add", "Div", "Mul", "Sub"}) table[op] = Binary;
  for (const char* op : {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}) {
    table[op] = Comparison;
  }
  for (const char* op : {"And", "Not", "Or", "Xor"}) table[op] = Logic;
  for (const char* op : {"Max", "Mean", "Min", "Sum"}) table[op] = Several;
  table["Cast"] = table["CastLike"] = Cast;
  table["Celu"] = Celu;
  table["Clip"] = Clip;
  table["Dropout"] = Dropout;
  table["Elu"] = Elu;
  table["Gelu"] = Gelu;
  table["HardSigmoid"] = HardSigmoid;
  table["HardSwish"] = HardSwish;
  table["Identity"] = Identity;
  table["IsNaN"] = IsNan;
  table["LeakyRelu"] = LeakyRelu;
  table["Mish"] = Mish;
  table["Mod"] = Mod;
  table["PRelu"] = PRelu;
  table["Pow"] = Pow;
  table["Reciprocal"] = Reciprocal;
  table["Selu"] = Selu;
  table["Softsign"] = Softsign;
  table["Swish"] = Swish;
  table["Where"] = Where;
}

}  // namespace muster
