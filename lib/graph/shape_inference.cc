#include "lib/graph/shape_inference.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "lib/graph/attributes.h"
#include "lib/graph/dtype.h"
#include "lib/graph/operator.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// The most elements of a tensor: the limit for parameters applies to every tensor.
constexpr int64_t kElementsMax = limits::kParameterElementsMax;

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

std::string Described(const v1::Node& node) {
  return absl::StrCat("node '", node.name(), "' (", node.op(), ")");
}

// Adds a tensor to `types`, or returns INVALID_ARGUMENT. `kind` names the tensor in errors:
// "input", "parameter" or "output".
absl::Status Define(absl::string_view kind, const std::string& name, TensorType type,
                    TensorTypes& types) {
  const auto fail = [&](const auto&... fault) { return Invalid(kind, " '", name, "' ", fault...); };
  if (name.empty()) return Invalid(kind, " without a name");
  if (type.shape.size() > kRankMax) {
    return fail("has ", type.shape.size(), " dimensions, more than ", kRankMax);
  }
  int64_t elements = 1;
  for (int64_t size : type.shape) {
    if (size < 1) return fail("is ", type.ToString(), ": every dimension must be at least 1");
    if (size > kElementsMax / elements) {
      return fail("is ", type.ToString(), ": more than ", kElementsMax, " elements");
    }
    elements *= size;
  }
  if (!types.try_emplace(name, std::move(type)).second) return fail("is defined twice");
  return absl::OkStatus();
}

absl::Status DefineInputs(const v1::Graph& graph, int64_t batch, TensorTypes& types) {
  for (const v1::GraphInput& input : graph.inputs()) {
    if (input.dtype() != v1::DTYPE_F32 && input.dtype() != v1::DTYPE_I32) {
      return Invalid("input '", input.name(), "' has dtype ", input.dtype(),
                     ", must be f32 or i32");
    }
    TensorType type{input.dtype(), {input.shape().begin(), input.shape().end()}};
    if (type.shape.empty() || type.shape.front() != -1) {
      return Invalid("input '", input.name(), "' is ", type.ToString(),
                     ": the first dimension must be -1, the batch");
    }
    type.shape.front() = batch;
    RETURN_IF_ERROR(Define("input", input.name(), std::move(type), types));
  }
  return absl::OkStatus();
}

absl::Status DefineParameters(const v1::Graph& graph, TensorTypes& types) {
  if (graph.parameters_size() > limits::kParametersMax) {
    return Invalid("the graph has ", graph.parameters_size(), " parameters, more than ",
                   limits::kParametersMax);
  }
  for (const v1::Parameter& parameter : graph.parameters()) {
    const v1::DType dtype =
        parameter.dtype() == v1::DTYPE_UNSPECIFIED ? v1::DTYPE_F32 : parameter.dtype();
    if (!IsFloating(dtype)) {
      return Invalid("parameter '", parameter.name(), "' has dtype ", dtype,
                     ", must be f32, bf16 or f16");
    }
    if (parameter.has_statistic_momentum() &&
        !(parameter.statistic_momentum() > 0 && parameter.statistic_momentum() <= 1)) {
      return Invalid("parameter '", parameter.name(), "' has a statistic momentum of ",
                     parameter.statistic_momentum(), ", must be in (0, 1]");
    }
    TensorType type{dtype, {parameter.shape().begin(), parameter.shape().end()}};
    RETURN_IF_ERROR(Define("parameter", parameter.name(), std::move(type), types));
  }
  return absl::OkStatus();
}

// ---------------------------------------------------------------- attributes

absl::string_view KindName(v1::Attribute::ValueCase kind) {
  switch (kind) {
    case v1::Attribute::kI:
      return "an integer";
    case v1::Attribute::kF:
      return "a number";
    case v1::Attribute::kS:
      return "a word";
    case v1::Attribute::kIntegers:
      return "a list of integers";
    default:
      return "a list of numbers";
  }
}

template <typename Values>
absl::Status CheckValues(const Values& values, const AttributeRule& rule) {
  const auto fail = [&](const auto&... fault) {
    return Invalid("attribute '", rule.name, "' ", fault...);
  };
  const bool is_list =
      rule.kind == v1::Attribute::kIntegers || rule.kind == v1::Attribute::kNumbers;
  if (rule.length >= 0 && is_list && std::ssize(values) != rule.length) {
    return fail("has ", values.size(), " values, must have ", rule.length);
  }
  for (const auto value : values) {
    if (!std::isfinite(static_cast<double>(value))) return fail("is ", value);
    if (rule.min > rule.max || (value >= rule.min && value <= rule.max)) continue;
    const auto bound = [](double number) {
      return number == std::floor(number) ? absl::StrCat(static_cast<int64_t>(number))
                                          : absl::StrCat(number);
    };
    return fail("is ", value, ", must be in [", bound(rule.min), ", ", bound(rule.max), "]");
  }
  return absl::OkStatus();
}

absl::Status CheckAttribute(const v1::Attribute& attribute, const AttributeRule& rule) {
  if (attribute.value_case() != rule.kind) {
    return Invalid("attribute '", rule.name, "' must be ", KindName(rule.kind));
  }
  switch (rule.kind) {
    case v1::Attribute::kI:
      return CheckValues(std::vector<int64_t>{attribute.i()}, rule);
    case v1::Attribute::kF:
      return CheckValues(std::vector<double>{attribute.f()}, rule);
    case v1::Attribute::kIntegers:
      return CheckValues(attribute.integers().values(), rule);
    case v1::Attribute::kNumbers:
      return CheckValues(attribute.numbers().values(), rule);
    default:
      if (std::ranges::count(rule.words, absl::string_view(attribute.s())) > 0) {
        return absl::OkStatus();
      }
      return Invalid("attribute '", rule.name, "' is '", attribute.s(), "', must be one of ",
                     absl::StrJoin(rule.words, ", "));
  }
}

absl::Status CheckAttributes(const v1::Node& node, const Operator& op) {
  for (const auto& [name, attribute] : node.attributes()) {
    auto rule = std::ranges::find(op.attributes, absl::string_view(name), &AttributeRule::name);
    if (rule == op.attributes.end()) return Invalid("unknown attribute '", name, "'");
    RETURN_IF_ERROR(CheckAttribute(attribute, *rule));
  }
  for (const AttributeRule& rule : op.attributes) {
    if (rule.absence == AttributeRule::Absence::kRefused && !HasAttribute(node, rule.name)) {
      return Invalid("attribute '", rule.name, "' is missing");
    }
  }
  return absl::OkStatus();
}

// ---------------------------------------------------------------- signatures

std::string Listed(const std::vector<Operand>& operands) {
  if (operands.empty()) return "none";
  return absl::StrJoin(operands, ", ", [](std::string* out, const Operand& operand) {
    absl::StrAppend(out, operand.name,
                    operand.arity == Operand::Arity::kOptional ? " (optional)" : "",
                    operand.arity == Operand::Arity::kMany ? " (repeated)" : "");
  });
}

bool Repeats(const std::vector<Operand>& operands) {
  return !operands.empty() && operands.back().arity == Operand::Arity::kMany;
}

// Returns whether an optional output exists: "dbias" exists with the input "bias".
bool HasOutput(const v1::Node& node, const Operator& op, const Operand& output) {
  if (output.arity != Operand::Arity::kOptional) return true;
  const absl::string_view wanted = absl::StripPrefix(output.name, "d");
  const auto input = std::ranges::find(op.inputs, wanted, &Operand::name);
  CHECK(input != op.inputs.end()) << op.name << " " << output.name;
  return input - op.inputs.begin() < node.inputs_size();
}

absl::Status CheckArity(const v1::Node& node, const Operator& op) {
  const int required =
      op.inputs.size() - std::ranges::count(op.inputs, Operand::Arity::kOptional, &Operand::arity);
  if (node.inputs_size() < required ||
      (!Repeats(op.inputs) && node.inputs_size() > std::ssize(op.inputs))) {
    return Invalid("has ", node.inputs_size(), " inputs, takes ", Listed(op.inputs));
  }
  const int made = std::ranges::count_if(
      op.outputs, [&](const Operand& output) { return HasOutput(node, op, output); });
  if (node.outputs_size() < made || (!Repeats(op.outputs) && node.outputs_size() > made)) {
    return Invalid("has ", node.outputs_size(), " outputs, makes ", Listed(op.outputs));
  }
  return absl::OkStatus();
}

// Returns a word of a repeated operand: "...x#" of the second tensor is "...x1".
std::string Numbered(absl::string_view word, int repeat) {
  return absl::ConsumeSuffix(&word, "#") ? absl::StrCat(word, repeat) : std::string(word);
}

// Matches the types of a node's inputs with its operator's signature.
class SignatureMatch {
 public:
  SignatureMatch(const v1::Node& node, const Operator& op) : node_(node), op_(op) {}

  absl::Status AddInput(const TensorType& type) {
    const Operand& operand = op_.input(inputs_.size());
    const int repeat = std::max<int>(0, inputs_.size() - op_.inputs.size() + 1);
    inputs_.push_back({&operand, &type});
    RETURN_IF_ERROR(MatchDtype(operand, type));

    // The pattern has at most one run ("..."). It takes the dimensions that the other words leave.
    const std::vector<std::string>& words = operand.words;
    const auto run = std::ranges::find_if(
        words, [](const std::string& word) { return word.starts_with("..."); });
    const bool has_run = run != words.end();
    const size_t fixed = words.size() - has_run;
    if (type.shape.size() < fixed || (!has_run && type.shape.size() > fixed)) return Mismatch();

    absl::Span<const int64_t> sizes = type.shape;
    for (auto word = words.begin(); word != words.end(); ++word) {
      const size_t width = word == run ? type.shape.size() - fixed : 1;
      RETURN_IF_ERROR(Bind(Numbered(*word, repeat), sizes.first(width)));
      sizes.remove_prefix(width);
    }
    return absl::OkStatus();
  }

  absl::Status Relate() {
    if (op_.relate == nullptr) return absl::OkStatus();
    const absl::Status status = op_.relate(node_, dimensions_);
    if (status.ok() || inputs_.empty()) return status;
    return Annotate(status, absl::StrJoin(inputs_, ", ", AppendInput));
  }

  absl::StatusOr<std::vector<TensorType>> Outputs() const {
    std::vector<TensorType> types;
    for (const Operand& operand : op_.outputs) {
      if (operand.arity != Operand::Arity::kMany) {
        if (HasOutput(node_, op_, operand)) types.push_back(Output(operand, 0));
        continue;
      }
      const std::string& word = operand.words.front();
      for (int k = 0; dimensions_.contains(Numbered(word, k)); ++k) {
        types.push_back(Output(operand, k));
      }
    }
    if (std::ssize(types) == node_.outputs_size()) return types;
    return Invalid("has ", node_.outputs_size(), " outputs, makes ", types.size());
  }

 private:
  struct Input {
    const Operand* operand;
    const TensorType* type;
  };

  static void AppendInput(std::string* out, const Input& input) {
    absl::StrAppend(out, input.operand->name, " is ", input.type->ToString());
  }

  absl::Status Mismatch() const {
    const Input& input = inputs_.back();
    return Invalid(input.operand->name, " is ", input.type->ToString(), ", must be ",
                   input.operand->type);
  }

  // Checks the element type of an input. A letter of the signature binds a type, as a word binds
  // sizes.
  absl::Status MatchDtype(const Operand& operand, const TensorType& type) {
    if (operand.dtype.size() != 1) {
      return DTypeName(type.dtype) == operand.dtype ? absl::OkStatus() : Mismatch();
    }
    const bool takes_integers = operand.dtype == "E" || operand.dtype == "A";
    if (!IsFloating(type.dtype) && !(takes_integers && type.dtype == v1::DTYPE_I32)) {
      return Mismatch();
    }
    if (operand.dtype == "A") return absl::OkStatus();
    const auto [known, added] = dtypes_.try_emplace(operand.dtype, inputs_.size() - 1);
    const Input& first = inputs_[known->second];
    if (first.type->dtype == type.dtype) return absl::OkStatus();
    std::string context;
    AppendInput(&context, first);
    context += " but ";
    AppendInput(&context, inputs_.back());
    return Invalid(context, ": types ", DTypeName(first.type->dtype), " and ",
                   DTypeName(type.dtype), " differ");
  }

  absl::Status Bind(const std::string& word, absl::Span<const int64_t> sizes) {
    const size_t first = first_use_.try_emplace(word, inputs_.size() - 1).first->second;
    const absl::Status status = dimensions_.Bind(word, sizes);
    if (status.ok()) return status;
    std::string context;
    if (first != inputs_.size() - 1) {
      AppendInput(&context, inputs_[first]);
      context += " but ";
    }
    AppendInput(&context, inputs_.back());
    return Annotate(status, context);
  }

  TensorType Output(const Operand& operand, int repeat) const {
    TensorType type{OutputDtype(operand), {}};
    for (const std::string& word : operand.words) {
      const std::vector<int64_t>& sizes = dimensions_.Run(Numbered(word, repeat));
      type.shape.insert(type.shape.end(), sizes.begin(), sizes.end());
    }
    return type;
  }

  v1::DType OutputDtype(const Operand& operand) const {
    absl::string_view dtype = operand.dtype;
    if (dtype == "state") return v1::DTYPE_STATE;
    if (absl::ConsumePrefix(&dtype, "@")) return *ParseDType(WordAttribute(node_, dtype));
    const auto letter = dtypes_.find(dtype);
    return letter == dtypes_.end() ? *ParseDType(dtype) : inputs_[letter->second].type->dtype;
  }

  const v1::Node& node_;
  const Operator& op_;
  std::vector<Input> inputs_;
  Dimensions dimensions_;
  absl::flat_hash_map<std::string, size_t> first_use_;  // index of the input that first used a word
  absl::flat_hash_map<std::string, size_t> dtypes_;  // index of the input that first used a letter
};

absl::Status UndefinedInput(const v1::Graph& graph, int position, const std::string& name) {
  for (int later = position; later < graph.nodes_size(); ++later) {
    if (std::ranges::count(graph.nodes(later).outputs(), name) > 0) {
      return Invalid("input '", name, "' is made only by node '", graph.nodes(later).name(),
                     "': nodes must be in topological order");
    }
  }
  return Invalid("input '", name, "' is not defined");
}

absl::Status DefineOutputs(const v1::Graph& graph, int position, TensorTypes& types) {
  const v1::Node& node = graph.nodes(position);
  const Operator* op = FindOperator(node.op());
  if (op == nullptr) return Invalid("unknown op");
  RETURN_IF_ERROR(CheckAttributes(node, *op));
  RETURN_IF_ERROR(CheckArity(node, *op));

  SignatureMatch match(node, *op);
  for (const std::string& name : node.inputs()) {
    auto input = types.find(name);
    if (input == types.end()) return UndefinedInput(graph, position, name);
    RETURN_IF_ERROR(match.AddInput(input->second));
  }
  RETURN_IF_ERROR(match.Relate());
  // The match points into `types`, so nothing may be inserted before its last use.
  ASSIGN_OR_RETURN(std::vector<TensorType> outputs, match.Outputs());
  for (int i = 0; i < node.outputs_size(); ++i) {
    RETURN_IF_ERROR(Define("output", node.outputs(i), std::move(outputs[i]), types));
  }
  return absl::OkStatus();
}

// ---------------------------------------------------------------- roles

absl::Status CheckScalar(absl::string_view role, const std::string& name,
                         const TensorTypes& types) {
  if (name.empty()) return absl::OkStatus();
  auto found = types.find(name);
  if (found == types.end()) return Invalid(role, " '", name, "' is not defined");
  if (found->second == TensorType{}) return absl::OkStatus();
  return Invalid(role, " '", name, "' is ", found->second.ToString(), ", must be f32[]");
}

absl::Status CheckGradients(const v1::Graph& graph, const TensorTypes& types) {
  if (graph.gradients_size() != graph.parameters_size()) {
    return Invalid("the graph has ", graph.gradients_size(), " gradients for ",
                   graph.parameters_size(), " parameters");
  }
  for (int p = 0; p < graph.gradients_size(); ++p) {
    auto found = types.find(graph.gradients(p));
    if (found == types.end()) return Invalid("gradient '", graph.gradients(p), "' is not defined");
    const TensorType& want = types.at(graph.parameters(p).name());
    if (found->second != want) {
      return Invalid("gradient '", graph.gradients(p), "' is ", found->second.ToString(),
                     ", must be ", want.ToString());
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRoles(const v1::Graph& graph, const TensorTypes& types) {
  RETURN_IF_ERROR(CheckScalar("loss", graph.loss(), types));
  RETURN_IF_ERROR(CheckScalar("correct", graph.correct(), types));
  if (!graph.logits().empty() && !types.contains(graph.logits())) {
    return Invalid("logits '", graph.logits(), "' is not defined");
  }
  return graph.gradients().empty() ? absl::OkStatus() : CheckGradients(graph, types);
}

}  // namespace

int64_t TensorType::elements() const {
  if (dtype == v1::DTYPE_STATE) return 0;
  int64_t product = 1;
  for (int64_t size : shape) product *= size;
  return product;
}

int64_t TensorType::bytes() const { return DTypeBytes(dtype) * elements(); }

std::string TensorType::ToString() const {
  if (dtype == v1::DTYPE_STATE) return "state";
  return absl::StrCat(DTypeName(dtype), "[", absl::StrJoin(shape, ", "), "]");
}

absl::Status InferNode(const v1::Node& node, TensorTypes& types) {
  v1::Graph alone;
  *alone.add_nodes() = node;
  return Annotate(DefineOutputs(alone, 0, types), Described(node));
}

absl::StatusOr<TensorTypes> InferTypes(const v1::Graph& graph, int64_t batch) {
  if (batch < 1) return Invalid("the batch is ", batch, ", must be at least 1");
  TensorTypes types;
  RETURN_IF_ERROR(DefineInputs(graph, batch, types));
  RETURN_IF_ERROR(DefineParameters(graph, types));
  absl::flat_hash_set<absl::string_view> node_names;
  for (int i = 0; i < graph.nodes_size(); ++i) {
    const v1::Node& node = graph.nodes(i);
    if (node.name().empty()) return Invalid("node ", i, " (", node.op(), ") has no name");
    if (!node_names.insert(node.name()).second) {
      return Invalid(Described(node), ": an earlier node has the same name");
    }
    RETURN_IF_ERROR(Annotate(DefineOutputs(graph, i, types), Described(node)));
  }
  RETURN_IF_ERROR(CheckRoles(graph, types));
  return types;
}

}  // namespace muster
