#include "lib/engine/verification/operator_case.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "glog/logging.h"
#include "kernels/philox.h"
#include "lib/engine/reference/reference.h"
#include "lib/engine/reference/tensor.h"
#include "lib/engine/verification/sketch.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::verification {
namespace {

using Kind = Operand::Kind;

// Returns the list of registered families. One thread fills the list while static objects are
// constructed.
std::vector<OperatorFamily>& Families() {
  static auto& families = *new std::vector<OperatorFamily>();
  return families;
}

std::string ToText(const v1::Attribute& attribute) {
  switch (attribute.value_case()) {
    case v1::Attribute::kI:
      return absl::StrCat(attribute.i());
    case v1::Attribute::kF:
      return absl::StrCat(attribute.f());
    case v1::Attribute::kIntegers:
      return absl::StrCat("[", absl::StrJoin(attribute.integers().values(), ", "), "]");
    case v1::Attribute::kNumbers:
      return absl::StrCat("[", absl::StrJoin(attribute.numbers().values(), ", "), "]");
    default:
      return attribute.s();
  }
}

float RoundedTo(double value, int bits) {
  if (value == 0) return 0;
  const double unit = std::exp2(std::floor(std::log2(std::abs(value))) + 1 - bits);
  return static_cast<float>(std::round(value / unit) * unit);
}

// Returns random number `i` of operand `stream`.
double RandomValue(const Operand& operand, uint64_t seed, uint64_t stream, uint64_t i) {
  const auto words = kernels::RandomWords(seed, stream, i);
  if (operand.low == 0 && operand.high == 0) return kernels::StandardNormal(words[0], words[1]);
  const double value = operand.low + (operand.high - operand.low) * kernels::UnitUniform(words[0]);
  return operand.is_integer() ? std::floor(value) : value;
}

reference::Tensor Values(const Operand& operand, uint64_t seed, uint64_t stream, int bits) {
  reference::Tensor tensor = reference::Zeros(operand.shape);
  tensor.is_integer = operand.is_integer();
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    const double value =
        operand.values.empty() ? RandomValue(operand, seed, stream, i) : operand.values[i];
    tensor.values[i] = tensor.is_integer ? value : RoundedTo(value, bits);
  }
  return tensor;
}

bool HasInput(const v1::Graph& graph, const std::string& name) {
  return std::ranges::any_of(graph.inputs(),
                             [&](const v1::GraphInput& input) { return input.name() == name; });
}

// Returns the values of a constant operand. They do not depend on the case's seed, because they are
// part of the graph.
std::vector<double> ConstantValues(const Operand& operand, int index) {
  return Values(operand, /*seed=*/1, index, /*bits=*/8).values;
}

// Returns the name of the op's input.
std::string AddOperand(const Operand& operand, int index, Sketch& sketch) {
  const std::string name = absl::StrCat("x", index);
  const std::vector<int64_t>& shape = operand.shape;
  switch (operand.kind) {
    case Kind::kTrained:
      return sketch.Parameter(name, shape);
    case Kind::kRows:
      if (!HasInput(sketch.graph, "rows")) sketch.Ids("rows", {});
      return sketch.Add(absl::StrCat(name, ".rows"), "Gather",
                        {sketch.Parameter(name, shape), "rows"});
    case Kind::kStatistic:
      return sketch.Statistic(name, shape);
    case Kind::kInput:
      return sketch.Input(name, {shape.begin() + 1, shape.end()});
    case Kind::kIds:
      return sketch.Ids(name, {shape.begin() + 1, shape.end()});
    case Kind::kConstant:
      return sketch.Add(name, "Constant", {},
                        {{"shape", shape}, {"values", ConstantValues(operand, index)}});
    case Kind::kConstantIds: {
      const std::vector<double> values = ConstantValues(operand, index);
      return sketch.Add(name, "Constant", {},
                        {{"shape", shape},
                         {"dtype", "i32"},
                         {"integers", std::vector<int64_t>(values.begin(), values.end())}});
    }
  }
  LOG(FATAL) << "unknown kind";
}

bool IsLoss(const std::string& op) {
  return op == "SoftmaxCrossEntropy" || op == "SigmoidCrossEntropy" || op == "MeanSquaredError" ||
         op == "BatchShare";
}

}  // namespace

std::string OperatorCase::ToString() const {
  std::string text = absl::StrCat(op, "(");
  for (const Operand& input : inputs) {
    absl::StrAppend(&text, &input == &inputs[0] ? "[" : ", [", absl::StrJoin(input.shape, ", "),
                    "]");
  }
  text += ")";
  for (const SketchAttribute& attribute : attributes) {
    absl::StrAppend(&text, " ", attribute.name, "=", ToText(attribute.value));
  }
  return text;
}

int OperatorCase::outputs() const {
  static const auto& counts = *new absl::flat_hash_map<std::string, int>{
      {"MaxPool2d", 2}, {"BatchNorm", 5}, {"LayerNorm", 3},           {"RmsNorm", 2},
      {"GroupNorm", 3}, {"Attention", 2}, {"SelfAttention", 2},       {"Lstm", 4},
      {"Gru", 3},       {"Split", 0},     {"SoftmaxCrossEntropy", 2}, {"TopK", 2},
  };
  const auto count = counts.find(op);
  if (count == counts.end()) return 1;
  if (count->second > 0) return count->second;
  for (const SketchAttribute& attribute : attributes) {
    if (attribute.name == "sizes") return attribute.value.integers().values_size();
  }
  LOG(FATAL) << "a Split needs the attribute sizes";
}

int64_t OperatorCase::batch() const {
  for (const Operand& operand : inputs) {
    if (operand.is_graph_input()) return operand.shape[0];
  }
  return 1;
}

v1::Graph ToGraph(const OperatorCase& c) {
  Sketch sketch;
  std::vector<std::string> operands;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    operands.push_back(AddOperand(c.inputs[i], static_cast<int>(i), sketch));
  }
  sketch.Add("op", c.op, operands, c.attributes, c.outputs());
  sketch.graph.set_logits("op");
  if (c.losses.empty()) return sketch.graph;
  if (IsLoss(c.op)) {
    sketch.graph.set_loss("op");
    return sketch.graph;
  }

  const reference::Tensors shapes =
      reference::Evaluate(sketch.graph, GivenTensors(c, sketch.graph, /*seed=*/1));
  std::vector<std::string> losses;
  for (int output : c.losses) {
    const std::string tensor = output == 0 ? "op" : absl::StrCat("op.", output);
    const int64_t sample = static_cast<int64_t>(shapes.at(tensor).values.size()) / c.batch();
    const std::string target = sketch.Input(absl::StrCat("target", output), {sample});
    const std::string shift = sketch.Input(absl::StrCat("shift", output), {sample});
    // The shape is [B, sample], or [1, sample] if the op has no batch. The shift broadcasts it to
    // [B, sample].
    const std::string flat = sketch.Add(absl::StrCat("flat", output), "Reshape", {tensor},
                                        {{"shape", std::vector<int64_t>{-1, sample}}});
    const std::string prediction =
        sketch.Add(absl::StrCat("prediction", output), "Sub", {flat, shift});
    losses.push_back(sketch.Loss("MeanSquaredError", prediction, target));
  }
  if (losses.size() > 1) sketch.graph.set_loss(sketch.Add("loss", "TotalLoss", losses));
  return sketch.graph;
}

reference::Tensors GivenTensors(const OperatorCase& c, const v1::Graph& graph, uint64_t seed,
                                int bits) {
  reference::Tensors given;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    if (!c.inputs[i].is_parameter() && !c.inputs[i].is_graph_input()) continue;
    given[absl::StrCat("x", i)] = Values(c.inputs[i], seed, i, bits);
  }
  if (HasInput(graph, "rows")) {
    given["rows"] = {.shape = {c.batch()}, .values = {}, .is_integer = true};
    for (int64_t row = 0; row < c.batch(); ++row) given["rows"].values.push_back(row);
  }
  for (const v1::GraphInput& input : graph.inputs()) {  // targets and shifts
    if (given.contains(input.name())) continue;
    Operand target({c.batch(), input.shape(1)});
    given[input.name()] = Values(target, seed, 100 + given.size(), bits);
  }
  return given;
}

OperatorFamily::OperatorFamily(std::string name, std::vector<OperatorCase> (*cases)())
    : name(std::move(name)), cases(cases) {
  Families().push_back(*this);
}

const std::vector<OperatorFamily>& OperatorFamilies() { return Families(); }

}  // namespace muster::verification
