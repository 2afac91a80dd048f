#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/graph/onnx/converters/converters.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using onnx::NodeProto;

constexpr int64_t kStepsMax = 1024;

// Reorders the rows of a weight or bias by gate. `axis` holds the gates.
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
                          {"sizes", IntegersValue(std::vector<int64_t>(order.size(), hidden))}}));
  RETURN_IF_ERROR(im.Add(node, "Concat", picked, {y}, {{"axis", IntegerValue(1)}}));
  return y;
}

// Returns whether the samples have their own lengths. A constant with the full length for every
// sample does not count.
bool HasLengths(OnnxImporter& im, const NodeProto& node) {
  if (!HasInput(node, 4)) return false;
  const FoldedValue* lengths = im.Folded(node, 4);
  const auto shape = im.InputShape(node, 0);
  return lengths == nullptr || !shape.ok() || shape->empty() ||
         lengths->Single() != static_cast<double>((*shape)[0].value);
}

// Returns whether the gates have a bound (clip), or activation functions other than `usual`.
bool HasOwnFunctions(const NodeProto& node, std::vector<std::string> usual) {
  if (FindAttribute(node, "clip") != nullptr) return true;
  const onnx::AttributeProto* activations = FindAttribute(node, "activations");
  if (activations == nullptr) return false;
  for (int i = 0; i < activations->strings_size(); ++i) {
    if (activations->strings(i) != usual[i % usual.size()]) return true;
  }
  return false;
}

// Converts LSTM and GRU. ONNX's input is [T, B, I] and its output [T, D, B, H]; Muster's input is
// [B, T, I] and its output [B, T, D H].
absl::Status Recurrent(OnnxImporter& im, const NodeProto& node) {
  const bool is_lstm = node.op_type() == "LSTM";
  const std::string direction = Word(node, "direction", "forward");
  if (HasOwnFunctions(node, is_lstm ? std::vector<std::string>{"Sigmoid", "Tanh", "Tanh"}
                                    : std::vector<std::string>{"Sigmoid", "Tanh"})) {
    return NodeFault(node, "has activations of its own, or a clip");
  }
  if (Integer(node, "layout", 0) != 0 || HasLengths(im, node) || HasInput(node, 7) ||
      Integer(node, "input_forget", 0) != 0 ||
      (!is_lstm && Integer(node, "linear_before_reset", 0) != 1)) {
    return NodeFault(
        node,
        "has sequence lengths, peepholes, layout 1, input_forget or (GRU) a reset before "
        "the product: only what torch.nn.LSTM and torch.nn.GRU export can be imported");
  }
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(std::string w, im.Tensor(node, 1));
  ASSIGN_OR_RETURN(std::string r, im.Tensor(node, 2));
  const int64_t hidden = Integer(node, "hidden_size", 0);
  const int64_t directions = direction == "bidirectional" ? 2 : 1;
  // The order of the gates changes: i, o, f, c -> i, f, c, o; z, r, h -> r, z, h.
  const std::vector<int> order = is_lstm ? std::vector<int>{0, 2, 3, 1} : std::vector<int>{1, 0, 2};
  std::vector<int> twice = order;
  for (int gate : order) twice.push_back(gate + static_cast<int>(order.size()));
  ASSIGN_OR_RETURN(w, Regate(im, node, w, "w", hidden, order));
  ASSIGN_OR_RETURN(r, Regate(im, node, r, "r", hidden, order));
  std::string bias;
  if (HasInput(node, 3)) {
    ASSIGN_OR_RETURN(const std::string b, im.Tensor(node, 3));
    ASSIGN_OR_RETURN(bias, Regate(im, node, b, "bias", hidden, twice));
  } else {
    bias = im.Intermediate(node, "bias");
    RETURN_IF_ERROR(im.Add(node, "Constant", {}, {bias},
                           {{"shape", IntegersValue({directions, std::ssize(twice) * hidden})},
                            {"value", NumberValue(0)}}));
  }
  const std::string batch_first = im.Intermediate(node, "batch_first");
  RETURN_IF_ERROR(
      im.Add(node, "Transpose", {x}, {batch_first}, {{"permutation", IntegersValue({1, 0, 2})}}));
  std::vector<std::string> inputs = {batch_first, w, r, bias};
  for (int i = 5; i <= (is_lstm ? 6 : 5); ++i) {
    const FoldedValue* initial = im.Folded(node, i);
    if (!HasInput(node, i) || (initial != nullptr && initial->Single() == 0.0)) continue;
    if (inputs.size() != static_cast<size_t>(i - 1)) {
      return NodeFault(node, "has only one of its two initial states");
    }
    ASSIGN_OR_RETURN(inputs.emplace_back(), im.Tensor(node, i));
  }
  const std::string y = im.Intermediate(node, "y");
  std::vector<std::string> outputs = {y, im.Output(node, 1)};
  if (is_lstm) outputs.push_back(im.Output(node, 2));
  outputs.push_back(im.Intermediate(node, "state"));
  RETURN_IF_ERROR(im.Add(node, is_lstm ? "Lstm" : "Gru", inputs, outputs,
                         {{"reverse", IntegerValue(direction == "reverse")}}));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(y));
  const std::string split = im.Intermediate(node, "directions");
  RETURN_IF_ERROR(im.Add(node, "Reshape", {y}, {split},
                         {{"shape", IntegersValue({0, shape[1].value, directions, hidden})}}));
  return im.Add(node, "Transpose", {split}, {im.Output(node, 0)},
                {{"permutation", IntegersValue({1, 2, 0, 3})}});
}

// ---------------------------------------------------------------- RNN

absl::StatusOr<std::string> RowOf(OnnxImporter& im, const NodeProto& node, const std::string& x,
                                  int64_t axis, int64_t at) {
  ASSIGN_OR_RETURN(const std::string slice, im.Make(node, "Slice", {x},
                                                    {{"axes", IntegersValue({axis})},
                                                     {"starts", IntegersValue({at})},
                                                     {"ends", IntegersValue({at + 1})}}));
  return im.Make(node, "Squeeze", {slice}, {{"axes", IntegersValue({axis})}});
}

// Writes out one direction of an Elman network step by step: h' = f(W x + R h + b). Returns its
// states by position in time, each [B, H].
absl::StatusOr<std::vector<std::string>> States(OnnxImporter& im, const NodeProto& node,
                                                const std::string& x, int64_t steps,
                                                int64_t direction, bool reverse) {
  std::vector<std::string> weights;
  for (int i = 1; i <= 2; ++i) {
    ASSIGN_OR_RETURN(const std::string both, im.Tensor(node, i));
    ASSIGN_OR_RETURN(weights.emplace_back(), RowOf(im, node, both, 0, direction));
  }
  std::vector<std::string> inputs = {x, weights[0]};
  if (HasInput(node, 3)) {
    // The input holds the bias of W followed by the bias of R.
    ASSIGN_OR_RETURN(const std::string both, im.Tensor(node, 3));
    ASSIGN_OR_RETURN(const std::string own, RowOf(im, node, both, 0, direction));
    const int64_t hidden = Integer(node, "hidden_size", 0);
    ASSIGN_OR_RETURN(const std::string halves, im.Reshaped(node, own, {Extent{2}, Extent{hidden}}));
    ASSIGN_OR_RETURN(inputs.emplace_back(),
                     im.Make(node, "ReduceSum", {halves},
                             {{"axes", IntegersValue({0})}, {"keep", IntegerValue(0)}}));
  }
  ASSIGN_OR_RETURN(const std::string products, im.Make(node, "Linear", inputs));
  std::string state;
  const FoldedValue* initial = im.Folded(node, 5);
  if (HasInput(node, 5) && !(initial != nullptr && initial->Single() == 0.0)) {
    ASSIGN_OR_RETURN(const std::string both, im.Tensor(node, 5));
    ASSIGN_OR_RETURN(state, RowOf(im, node, both, 0, direction));
  }
  const onnx::AttributeProto* activations = FindAttribute(node, "activations");
  std::string f = "Tanh";
  if (activations != nullptr && activations->strings_size() > direction) {
    f = activations->strings(static_cast<int>(direction));
  }
  if (f != "Tanh" && f != "Relu") return NodeFault(node, absl::StrCat("has the activation ", f));
  std::vector<std::string> states(steps);
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t t = reverse ? steps - 1 - step : step;
    ASSIGN_OR_RETURN(std::string sum, RowOf(im, node, products, 0, t));
    if (!state.empty()) {
      ASSIGN_OR_RETURN(const std::string before, im.Make(node, "Linear", {state, weights[1]}));
      ASSIGN_OR_RETURN(sum, im.Make(node, "Add", {sum, before}));
    }
    ASSIGN_OR_RETURN(state, im.Make(node, f, {sum}));
    states[t] = state;
  }
  return states;
}

// Converts RNN, step by step. The input is [T, B, I]; the outputs are [T, D, B, H] and the last
// states [D, B, H].
absl::Status Elman(OnnxImporter& im, const NodeProto& node) {
  const std::string direction = Word(node, "direction", "forward");
  if (Integer(node, "layout", 0) != 0 || HasLengths(im, node) ||
      FindAttribute(node, "clip") != nullptr) {
    return NodeFault(node, "has sequence lengths, layout 1 or a clip");
  }
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  if (shape.size() != 3 || shape[0].of_batch || shape[0].value > kStepsMax) {
    return NodeFault(node, absl::StrCat("needs [T, B, I] with at most ", kStepsMax, " steps"));
  }
  const int64_t steps = shape[0].value;
  std::vector<std::string> all, last;
  for (int64_t d = 0; d < (direction == "bidirectional" ? 2 : 1); ++d) {
    const bool reverse = direction == "reverse" || d == 1;
    ASSIGN_OR_RETURN(const std::vector<std::string> states, States(im, node, x, steps, d, reverse));
    std::vector<std::string> rows;
    for (const std::string& state : states) {
      ASSIGN_OR_RETURN(rows.emplace_back(),
                       im.Make(node, "Unsqueeze", {state}, {{"axes", IntegersValue({0, 1})}}));
    }
    last.push_back("");
    ASSIGN_OR_RETURN(last.back(), im.Make(node, "Unsqueeze", {states[reverse ? 0 : steps - 1]},
                                          {{"axes", IntegersValue({0})}}));
    all.push_back(rows[0]);
    if (steps > 1) {
      ASSIGN_OR_RETURN(all.back(), im.Make(node, "Concat", rows, {{"axis", IntegerValue(0)}}));
    }
  }
  const auto joined = [&](const std::vector<std::string>& parts,
                          int64_t axis) -> absl::StatusOr<std::string> {
    if (parts.size() == 1) return parts[0];
    return im.Make(node, "Concat", parts, {{"axis", IntegerValue(axis)}});
  };
  ASSIGN_OR_RETURN(const std::string y, joined(all, 1));
  im.Alias(node, 0, y);
  if (!HasOutput(node, 1)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string states, joined(last, 0));
  im.Alias(node, 1, states);
  return absl::OkStatus();
}

}  // namespace

void AddRecurrentConverters(ConverterTable& table) {
  table["GRU"] = table["LSTM"] = Recurrent;
  table["RNN"] = Elman;
}

}  // namespace muster
