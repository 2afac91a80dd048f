#include "lib/graph/shape_inference.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/cluster/limits.h"
#include "lib/graph/operator.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int kRankMax = 8;

// Of every tensor, as of every parameter.
constexpr int64_t kElementsMax = limits::kParameterElementsMax;

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

std::string Described(const v1::Node& node) {
  return absl::StrCat("node '", node.name(), "' (", node.op(), ")");
}

// `kind` is the tensor's in errors: "input", "parameter" or "output".
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
    TensorType type{v1::DTYPE_F32, {parameter.shape().begin(), parameter.shape().end()}};
    RETURN_IF_ERROR(Define("parameter", parameter.name(), std::move(type), types));
  }
  return absl::OkStatus();
}

absl::Status CheckAttribute(const v1::Attribute& attribute, const AttributeRule& rule) {
  if (attribute.value_case() != rule.kind) {
    return Invalid("attribute '", rule.name, "' must be ",
                   rule.kind == v1::Attribute::kI ? "an integer" : "a number");
  }
  const auto check = [&](auto value, auto min, auto max) {
    if (value >= min && value <= max) return absl::OkStatus();  // not for NaN
    return Invalid("attribute '", rule.name, "' is ", value, ", must be in [", min, ", ", max, "]");
  };
  if (rule.kind == v1::Attribute::kF) return check(attribute.f(), rule.min, rule.max);
  return check(attribute.i(), static_cast<int64_t>(rule.min), static_cast<int64_t>(rule.max));
}

absl::Status CheckAttributes(const v1::Node& node, const Operator& op) {
  for (const auto& [name, attribute] : node.attributes()) {
    auto rule = std::ranges::find(op.attributes, absl::string_view(name), &AttributeRule::name);
    if (rule == op.attributes.end()) return Invalid("unknown attribute '", name, "'");
    RETURN_IF_ERROR(CheckAttribute(attribute, *rule));
  }
  for (const AttributeRule& rule : op.attributes) {
    if (rule.required && !node.attributes().contains(std::string(rule.name))) {
      return Invalid("attribute '", rule.name, "' is missing");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckArity(const v1::Node& node, const Operator& op) {
  const auto name = [](std::string* out, const Operand& operand) {
    absl::StrAppend(out, operand.name,
                    operand.arity == Operand::Arity::kOptional ? " (optional)" : "");
  };
  const bool repeats = op.inputs.back().arity == Operand::Arity::kMany;
  const int least =
      repeats ? 1 : std::ranges::count(op.inputs, Operand::Arity::kOne, &Operand::arity);
  if (node.inputs_size() < least || (!repeats && node.inputs_size() > op.inputs.size())) {
    return Invalid("has ", node.inputs_size(), " inputs, takes ",
                   absl::StrJoin(op.inputs, ", ", name));
  }
  if (node.outputs_size() != op.outputs.size()) {
    return Invalid("has ", node.outputs_size(), " outputs, makes ",
                   absl::StrJoin(op.outputs, ", ", name));
  }
  return absl::OkStatus();
}

// The types of a node's inputs against its operator's signature.
class SignatureMatch {
 public:
  explicit SignatureMatch(const Operator& op) : op_(op) {}

  absl::Status AddInput(const TensorType& type) {
    const Operand& operand = op_.inputs[std::min(inputs_.size(), op_.inputs.size() - 1)];
    inputs_.push_back({&operand, &type});
    if (type.dtype != operand.dtype) return Mismatch();

    const std::vector<std::string>& words = operand.words;
    const auto run = std::ranges::find_if(
        words, [](const std::string& word) { return word.starts_with("..."); });
    const bool has_run = run != words.end();
    const size_t fixed = words.size() - has_run;
    if (type.shape.size() < fixed || (!has_run && type.shape.size() > fixed)) return Mismatch();

    absl::Span<const int64_t> sizes = type.shape;
    for (auto word = words.begin(); word != words.end(); ++word) {
      const size_t width = word == run ? type.shape.size() - fixed : 1;
      RETURN_IF_ERROR(Bind(*word, sizes.first(width)));
      sizes.remove_prefix(width);
    }
    return absl::OkStatus();
  }

  absl::Status Relate(const v1::Node& node) {
    if (op_.relate == nullptr) return absl::OkStatus();
    return Annotate(op_.relate(node, dimensions_), absl::StrJoin(inputs_, ", ", AppendInput));
  }

  TensorType Output(const Operand& operand) const {
    TensorType type{operand.dtype, {}};
    for (const std::string& word : operand.words) {
      const std::vector<int64_t>& sizes = dimensions_.Run(word);
      type.shape.insert(type.shape.end(), sizes.begin(), sizes.end());
    }
    return type;
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

  const Operator& op_;
  std::vector<Input> inputs_;
  Dimensions dimensions_;
  absl::flat_hash_map<std::string, size_t> first_use_;  // of a word: index of the input
};

absl::Status DefineOutputs(const v1::Graph& graph, int position, TensorTypes& types) {
  const v1::Node& node = graph.nodes(position);
  const Operator* op = FindOperator(node.op());
  if (op == nullptr) return Invalid("unknown op");
  RETURN_IF_ERROR(CheckAttributes(node, *op));
  RETURN_IF_ERROR(CheckArity(node, *op));

  SignatureMatch match(*op);
  for (const std::string& name : node.inputs()) {
    auto input = types.find(name);
    if (input == types.end()) {
      for (int later = position; later < graph.nodes_size(); ++later) {
        if (std::ranges::count(graph.nodes(later).outputs(), name) > 0) {
          return Invalid("input '", name, "' is made only by node '", graph.nodes(later).name(),
                         "': nodes must be in topological order");
        }
      }
      return Invalid("input '", name, "' is not defined");
    }
    RETURN_IF_ERROR(match.AddInput(input->second));
  }
  RETURN_IF_ERROR(match.Relate(node));
  // The match points into `types`, so no insertion before its last use.
  std::vector<TensorType> outputs;
  for (const Operand& operand : op->outputs) outputs.push_back(match.Output(operand));
  for (int i = 0; i < outputs.size(); ++i) {
    RETURN_IF_ERROR(Define("output", node.outputs(i), std::move(outputs[i]), types));
  }
  return absl::OkStatus();
}

absl::Status CheckRole(absl::string_view role, const std::string& name, const TensorType* want,
                       const TensorTypes& types) {
  auto found = types.find(name);
  if (found == types.end()) return Invalid(role, " '", name, "' is not defined");
  if (want != nullptr && found->second != *want) {
    return Invalid(role, " '", name, "' is ", found->second.ToString(), ", must be ",
                   want->ToString());
  }
  return absl::OkStatus();
}

absl::Status CheckRoles(const v1::Graph& graph, const TensorTypes& types) {
  const TensorType scalar;
  if (!graph.loss().empty()) RETURN_IF_ERROR(CheckRole("loss", graph.loss(), &scalar, types));
  if (!graph.logits().empty()) RETURN_IF_ERROR(CheckRole("logits", graph.logits(), nullptr, types));
  if (!graph.correct().empty())
    RETURN_IF_ERROR(CheckRole("correct", graph.correct(), &scalar, types));
  if (graph.gradients().empty()) return absl::OkStatus();
  if (graph.gradients_size() != graph.parameters_size()) {
    return Invalid("the graph has ", graph.gradients_size(), " gradients for ",
                   graph.parameters_size(), " parameters");
  }
  for (int p = 0; p < graph.gradients_size(); ++p) {
    RETURN_IF_ERROR(
        CheckRole("gradient", graph.gradients(p), &types.at(graph.parameters(p).name()), types));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t TensorType::elements() const {
  int64_t product = 1;
  for (int64_t size : shape) product *= size;
  return product;
}

int64_t TensorType::bytes() const { return 4 * elements(); }

std::string TensorType::ToString() const {
  return absl::StrCat(dtype == v1::DTYPE_I32 ? "i32[" : "f32[", absl::StrJoin(shape, ", "), "]");
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
