#include "lib/graph/autodiff.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "google/protobuf/repeated_field.h"
#include "lib/graph/dependence.h"
#include "lib/graph/dtype.h"
#include "lib/graph/operator.h"
#include "lib/graph/shape_inference.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// The batch for which types are inferred. Broadcasting does not depend on it. It is not 1, because
// then an addend [1, C] would have the same size as its sum.
constexpr int64_t kBatch = 2;

// The positions of an operand's tensors among a node's tensors: one tensor, several of a repeated
// operand, none of an omitted optional one.
struct Range {
  int begin;
  int end;
};

Range Positions(const std::vector<Operand>& operands,
                const google::protobuf::RepeatedPtrField<std::string>& tensors,
                absl::string_view name) {
  const int position = std::ranges::find(operands, name, &Operand::name) - operands.begin();
  if (position == std::ssize(operands)) return {0, 0};
  const bool repeats = operands[position].arity == Operand::Arity::kMany;
  return {std::min(position, tensors.size()),
          repeats ? tensors.size() : std::min(position + 1, tensors.size())};
}

// Returns the output that belongs to the gradient "dNAME" of a rule's inputs; null if the input is
// no gradient.
const Operand* Differentiated(const Operator& op, absl::string_view input) {
  if (input == "dy") return &op.outputs.front();
  if (!absl::ConsumePrefix(&input, "d")) return nullptr;
  const auto output = std::ranges::find(op.outputs, input, &Operand::name);
  return output == op.outputs.end() ? nullptr : &*output;
}

class Differentiation {
 public:
  Differentiation(const v1::Graph& forward, const TensorTypes& types)
      : forward_(forward),
        types_(types),
        graph_(forward),
        active_(DifferentiableInTrained(forward, types)) {
    for (const v1::Parameter& parameter : forward.parameters()) {
      (parameter.has_statistic_momentum() ? statistics_ : trained_).insert(parameter.name());
    }
    for (const auto& [name, type] : types) names_.insert(name);
    for (const v1::Node& node : forward.nodes()) node_names_.insert(node.name());
  }

  absl::StatusOr<v1::Graph> Run() && {
    RETURN_IF_ERROR(FindLosses());
    RETURN_IF_ERROR(FindUses());
    RETURN_IF_ERROR(FindStatistics());
    for (int i = forward_.nodes_size() - 1; i >= 0; --i) {
      AddStatistics(forward_.nodes(i));
      if (LeadsToLoss(forward_.nodes(i))) AddBackward(i);
    }
    for (const v1::Parameter& parameter : forward_.parameters()) {
      graph_.add_gradients(gradients_.at(parameter.name()));
    }
    return std::move(graph_);
  }

 private:
  // A part of a tensor's gradient, from one of its uses.
  struct Contribution {
    int node;   // position in the forward graph
    int input;  // input of the node
    std::string tensor;
  };

  static absl::Status Fail(const v1::Node& node, absl::string_view what, absl::string_view tensor) {
    return absl::InvalidArgumentError(
        absl::StrCat("node '", node.name(), "' (", node.op(), ") ", what, " '", tensor, "'"));
  }

  // Finds the outputs of loss functions that add up to the graph's loss.
  absl::Status FindLosses() {
    absl::flat_hash_map<absl::string_view, const v1::Node*> makers;
    for (const v1::Node& node : forward_.nodes()) {
      for (const std::string& output : node.outputs()) makers.emplace(output, &node);
    }
    std::vector<std::string> totals = {forward_.loss()};
    while (!totals.empty()) {
      const std::string loss = std::move(totals.back());
      totals.pop_back();
      const auto maker = makers.find(loss);
      if (maker == makers.end()) {
        return absl::InvalidArgumentError(absl::StrCat("no node makes the loss '", loss, "'"));
      }
      const v1::Node& node = *maker->second;
      if (node.op() == "TotalLoss") {
        totals.insert(totals.end(), node.inputs().begin(), node.inputs().end());
      } else if (!FindOperator(node.op())->is_loss() || node.outputs(0) != loss) {
        return Fail(node, "is no loss function but makes the loss", loss);
      } else if (!losses_.insert(loss).second) {
        return absl::InvalidArgumentError(absl::StrCat("loss '", loss, "' counts twice"));
      }
    }
    return absl::OkStatus();
  }

  bool LeadsToLoss(const v1::Node& node) const {
    return std::ranges::any_of(node.outputs(),
                               [&](const auto& y) { return leads_to_loss_.contains(y); });
  }

  // Counts the uses through which each active tensor reaches the loss. So backward knows when a
  // gradient is complete.
  absl::Status FindUses() {
    leads_to_loss_ = losses_;
    for (int i = forward_.nodes_size() - 1; i >= 0; --i) {
      const v1::Node& node = forward_.nodes(i);
      if (!LeadsToLoss(node)) continue;
      const Operator& op = *FindOperator(node.op());
      RETURN_IF_ERROR(CheckOutputs(node, op));
      for (int x = 0; x < node.inputs_size(); ++x) {
        if (op.input(x).is_like() || !active_.contains(node.inputs(x))) continue;
        if (std::ranges::none_of(op.gradients, [&](const GradientRule& rule) {
              return std::ranges::count(rule.of, absl::string_view(op.input(x).name)) > 0;
            })) {
          return Fail(node, "has no derivative with respect to", node.inputs(x));
        }
        leads_to_loss_.insert(node.inputs(x));
        ++uses_[node.inputs(x)];
      }
    }
    return CheckAllReached(trained_, uses_, absl::StrCat("reach the loss '", forward_.loss(), "'"));
  }

  // Returns an error unless the rules use the gradient of each output through which the node leads
  // to the loss.
  absl::Status CheckOutputs(const v1::Node& node, const Operator& op) const {
    if (op.gradients.empty()) return absl::OkStatus();  // then no input has a gradient either
    for (int y = 0; y < node.outputs_size(); ++y) {
      const std::string& output = node.outputs(y);
      if (!leads_to_loss_.contains(output)) continue;
      if (op.is_loss()) {
        if (losses_.contains(output) && !uses_.contains(output)) continue;
        return Fail(node, "has no derivative: only the graph's loss may be", output);
      }
      const auto takes = [&](absl::string_view input) {
        return Differentiated(op, input) == &op.output(y);
      };
      if (std::ranges::none_of(op.gradients, [&](const GradientRule& rule) {
            return std::ranges::any_of(rule.inputs, takes);
          })) {
        return Fail(node, "has no derivative through its output", output);
      }
    }
    return absl::OkStatus();
  }

  template <typename Reached>
  absl::Status CheckAllReached(const absl::flat_hash_set<std::string>& parameters,
                               const Reached& reached, absl::string_view what) const {
    std::vector<std::string> missing;
    for (const v1::Parameter& parameter : forward_.parameters()) {
      if (parameters.contains(parameter.name()) && !reached.contains(parameter.name())) {
        missing.push_back(absl::StrCat("'", parameter.name(), "'"));
      }
    }
    if (missing.empty()) return absl::OkStatus();
    const bool one = missing.size() == 1;
    return absl::InvalidArgumentError(absl::StrCat(one ? "parameter " : "parameters ",
                                                   absl::StrJoin(missing, ", "),
                                                   one ? " does not " : " do not ", what));
  }

  // Returns an error unless every statistic feeds exactly one BatchNorm.
  absl::Status FindStatistics() {
    absl::flat_hash_set<std::string> fed;
    for (const v1::Node& node : forward_.nodes()) {
      if (node.op() != "BatchNorm") continue;
      for (int x : {1, 2}) {
        if (!statistics_.contains(node.inputs(x)) || fed.insert(node.inputs(x)).second) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("statistic '", node.inputs(x), "' feeds more than one BatchNorm"));
      }
    }
    return CheckAllReached(statistics_, fed, "feed a BatchNorm, as a statistic must");
  }

  // Adds the contributions of running_mean and running_variance: mean and variance of this run.
  void AddStatistics(const v1::Node& node) {
    if (node.op() != "BatchNorm") return;
    for (const auto& [running, statistic] :
         {std::pair(node.inputs(1), node.outputs(1)), std::pair(node.inputs(2), node.outputs(3))}) {
      if (!statistics_.contains(running)) continue;
      v1::Node& contribution =
          AddNode(absl::StrCat(node.name(), "/StatisticGrad"), "StatisticGrad");
      contribution.add_inputs(statistic);
      contribution.add_outputs(Unique(absl::StrCat("d(", running, ")"), names_));
      gradients_[running] = contribution.outputs(0);
    }
  }

  void AddBackward(int position) {
    const v1::Node& node = forward_.nodes(position);
    const Operator& op = *FindOperator(node.op());
    for (const GradientRule& rule : op.gradients) {
      std::vector<int> of;  // positions of inputs
      for (absl::string_view operand : rule.of) {
        const Range range = Positions(op.inputs, node.inputs(), operand);
        for (int x = range.begin; x < range.end; ++x) of.push_back(x);
      }
      const auto is_active = [&](int x) { return active_.contains(node.inputs(x)); };
      if (std::ranges::none_of(of, is_active)) continue;
      if (IsIdentity(rule, node, of.front())) {
        Contribute(position, of.front(), gradients_.at(node.outputs(0)));
        continue;
      }
      // Collects the inputs before it adds the node: this may add nodes that make zeros, which must
      // come first.
      std::vector<std::string> inputs;
      for (absl::string_view input : rule.inputs) AppendInputs(node, op, input, inputs);
      v1::Node& backward = AddNode(absl::StrCat(node.name(), "/", rule.op), rule.op);
      backward.mutable_inputs()->Add(inputs.begin(), inputs.end());
      CopyAttributes(node, backward);
      AddOutputs(node, of, backward);
      for (int k = 0; k < std::ssize(of); ++k) {
        if (is_active(of[k])) Contribute(position, of[k], backward.outputs(k));
      }
    }
  }

  // Returns whether dy itself is the gradient of the input. A parameter's gradient must be a
  // separate tensor, because the caller owns its memory.
  bool IsIdentity(const GradientRule& rule, const v1::Node& node, int input) const {
    return rule.identity_if_same_type && !trained_.contains(node.inputs(input)) &&
           types_.at(node.inputs(input)) == types_.at(node.outputs(0));
  }

  void AppendInputs(const v1::Node& node, const Operator& op, absl::string_view input,
                    std::vector<std::string>& inputs) {
    if (const Operand* output = Differentiated(op, input); output != nullptr) {
      const Range range = Positions(op.outputs, node.outputs(), output->name);
      for (int y = range.begin; y < range.end; ++y) inputs.push_back(GradientOf(node.outputs(y)));
      return;
    }
    for (const auto& [operands, tensors] :
         {std::pair(&op.inputs, &node.inputs()), std::pair(&op.outputs, &node.outputs())}) {
      const Range range = Positions(*operands, *tensors, input);
      inputs.insert(inputs.end(), tensors->begin() + range.begin, tensors->begin() + range.end);
    }
  }

  // Returns the gradient of a tensor: zeros if nothing flows back.
  const std::string& GradientOf(const std::string& tensor) {
    auto [gradient, is_new] = gradients_.try_emplace(tensor);
    if (!is_new) return gradient->second;
    const std::string name = absl::StrCat("d(", tensor, ")");
    v1::Node& zeros = AddNode(absl::StrCat(name, "/Constant"), "Constant");
    zeros.add_inputs(tensor);
    (*zeros.mutable_attributes())["dtype"].set_s(std::string(DTypeName(types_.at(tensor).dtype)));
    (*zeros.mutable_attributes())["value"].set_f(0);
    zeros.add_outputs(Unique(name, names_));
    return gradient->second = zeros.outputs(0);
  }

  static void CopyAttributes(const v1::Node& node, v1::Node& backward) {
    for (const AttributeRule& rule : FindOperator(backward.op())->attributes) {
      auto value = node.attributes().find(std::string(rule.name));
      if (value != node.attributes().end())
        (*backward.mutable_attributes())[value->first] = value->second;
    }
  }

  void AddOutputs(const v1::Node& node, absl::Span<const int> of, v1::Node& backward) {
    for (int x : of) {
      const std::string& tensor = node.inputs(x);
      const std::string gradient = absl::StrCat("d(", tensor, ")");
      const auto uses = uses_.find(tensor);
      // The plain name is for the whole gradient: here if there is one use, else for the sum.
      const bool is_whole = uses == uses_.end() || uses->second == 1;
      backward.add_outputs(
          Unique(is_whole ? gradient : absl::StrCat(gradient, " from ", node.name()), names_));
    }
  }

  // Adds a part of a gradient. The last part completes it.
  void Contribute(int position, int input, std::string part) {
    const std::string& tensor = forward_.nodes(position).inputs(input);
    std::vector<Contribution>& parts = parts_[tensor];
    parts.push_back({position, input, std::move(part)});
    if (std::ssize(parts) < uses_.at(tensor)) return;
    if (parts.size() == 1) {
      gradients_[tensor] = parts.front().tensor;
      return;
    }
    // Backward visits uses in reverse; the sum adds them in forward order (lib/graph/ops.md).
    std::ranges::sort(parts, {}, [](const Contribution& c) { return std::pair(c.node, c.input); });
    const std::string gradient = absl::StrCat("d(", tensor, ")");
    v1::Node& sum = AddNode(absl::StrCat(gradient, "/Accumulate"), "Accumulate");
    for (const Contribution& contribution : parts) sum.add_inputs(contribution.tensor);
    sum.add_outputs(Unique(gradient, names_));
    gradients_[tensor] = sum.outputs(0);
  }

  v1::Node& AddNode(std::string name, absl::string_view op) {
    v1::Node& node = *graph_.add_nodes();
    node.set_name(Unique(std::move(name), node_names_));
    node.set_op(std::string(op));
    return node;
  }

  // Returns `name`, with primes appended if the graph already uses it.
  static std::string Unique(std::string name, absl::flat_hash_set<std::string>& taken) {
    while (!taken.insert(name).second) name += "'";
    return name;
  }

  const v1::Graph& forward_;
  const TensorTypes& types_;
  v1::Graph graph_;
  absl::flat_hash_set<std::string> trained_;
  absl::flat_hash_set<std::string> statistics_;
  absl::flat_hash_set<std::string> names_;
  absl::flat_hash_set<std::string> node_names_;
  absl::flat_hash_set<std::string> losses_;
  absl::flat_hash_set<std::string> active_;  // the tensors that need a gradient
  absl::flat_hash_set<std::string> leads_to_loss_;
  absl::flat_hash_map<std::string, int> uses_;
  absl::flat_hash_map<std::string, std::vector<Contribution>> parts_;
  absl::flat_hash_map<std::string, std::string> gradients_;
};

}  // namespace

absl::StatusOr<v1::Graph> Differentiate(const v1::Graph& forward) {
  if (!forward.gradients().empty())
    return absl::InvalidArgumentError("the graph is differentiated already");
  if (forward.loss().empty()) return absl::InvalidArgumentError("the graph names no loss");
  if (forward.parameters().empty())
    return absl::InvalidArgumentError("the graph has no parameters");
  ASSIGN_OR_RETURN(const TensorTypes types, InferTypes(forward, kBatch));
  return Differentiation(forward, types).Run();
}

}  // namespace muster
