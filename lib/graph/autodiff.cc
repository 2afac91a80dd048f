#include "lib/graph/autodiff.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "lib/graph/operator.h"
#include "lib/graph/shape_inference.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// A node's tensor by its name in the operator's signature; null for an optional input that the node
// leaves out.
const std::string* Find(const v1::Node& node, const Operator& op, absl::string_view operand) {
  auto input = std::ranges::find(op.inputs, operand, &Operand::name);
  if (input != op.inputs.end()) {
    const int index = input - op.inputs.begin();
    return index < node.inputs_size() ? &node.inputs(index) : nullptr;
  }
  auto output = std::ranges::find(op.outputs, operand, &Operand::name);
  CHECK(output != op.outputs.end()) << op.name << " has no tensor " << operand;
  return &node.outputs(output - op.outputs.begin());
}

class Differentiation {
 public:
  Differentiation(const v1::Graph& forward, const TensorTypes& types)
      : forward_(forward), types_(types), graph_(forward) {
    for (const v1::Parameter& parameter : forward.parameters())
      parameters_.insert(parameter.name());
    for (const auto& [name, type] : types) names_.insert(name);
    for (const v1::Node& node : forward.nodes()) node_names_.insert(node.name());
  }

  absl::StatusOr<v1::Graph> Run() && {
    FindActive();
    RETURN_IF_ERROR(FindUses());
    for (int i = forward_.nodes_size() - 1; i >= 0; --i) {
      if (leads_to_loss_.contains(forward_.nodes(i).outputs(0))) AddBackward(i);
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
    int input;  // of the node
    std::string tensor;
  };

  // A tensor is active when it depends on a parameter: no other needs a gradient.
  void FindActive() {
    active_ = parameters_;
    for (const v1::Node& node : forward_.nodes()) {
      if (std::ranges::any_of(node.inputs(),
                              [&](const std::string& x) { return active_.contains(x); })) {
        active_.insert(node.outputs().begin(), node.outputs().end());
      }
    }
  }

  // Counts the uses through which each active tensor reaches the loss, so that backward knows when
  // a gradient is complete.
  absl::Status FindUses() {
    leads_to_loss_.insert(forward_.loss());
    for (int i = forward_.nodes_size() - 1; i >= 0; --i) {
      const v1::Node& node = forward_.nodes(i);
      const auto wanted = std::ranges::find_if(
          node.outputs(), [&](const std::string& y) { return leads_to_loss_.contains(y); });
      if (wanted == node.outputs().end()) continue;
      const Operator& op = *FindOperator(node.op());
      const auto fail = [&](absl::string_view what, absl::string_view tensor) {
        return absl::InvalidArgumentError(
            absl::StrCat("node '", node.name(), "' (", node.op(), ") ", what, " '", tensor, "'"));
      };
      const bool makes_loss = *wanted == forward_.loss();
      if (makes_loss && !op.is_loss())
        return fail("is no loss function but makes the loss", *wanted);
      if (!makes_loss && op.is_loss())
        return fail("has no derivative: only the graph's loss may be", *wanted);
      if (std::any_of(node.outputs().begin() + 1, node.outputs().end(),
                      [&](const std::string& y) { return leads_to_loss_.contains(y); })) {
        return fail("has a derivative only through", node.outputs(0));
      }
      for (int x = 0; x < node.inputs_size(); ++x) {
        if (!active_.contains(node.inputs(x))) continue;
        if (std::ranges::none_of(op.gradients, [&](const GradientRule& rule) {
              return std::ranges::count(rule.of, absl::string_view(op.inputs[x].name)) > 0;
            })) {
          return fail("has no derivative with respect to", node.inputs(x));
        }
        leads_to_loss_.insert(node.inputs(x));
        ++uses_[node.inputs(x)];
      }
    }
    for (const v1::Parameter& parameter : forward_.parameters()) {
      if (!uses_.contains(parameter.name())) {
        return absl::InvalidArgumentError(absl::StrCat(
            "parameter '", parameter.name(), "' does not reach the loss '", forward_.loss(), "'"));
      }
    }
    return absl::OkStatus();
  }

  void AddBackward(int position) {
    const v1::Node& node = forward_.nodes(position);
    const Operator& op = *FindOperator(node.op());
    for (const GradientRule& rule : op.gradients) {
      const auto is_active = [&](absl::string_view operand) {
        const std::string* tensor = Find(node, op, operand);
        return tensor != nullptr && active_.contains(*tensor);
      };
      if (std::ranges::none_of(rule.of, is_active)) continue;

      // A parameter's gradient is a tensor of its own: the caller owns its memory.
      const std::string& first = *Find(node, op, rule.of.front());
      if (rule.identity_if_same_shape && !parameters_.contains(first) &&
          types_.at(first) == types_.at(node.outputs(0))) {
        Contribute(position, InputIndex(op, rule.of.front()), gradients_.at(node.outputs(0)));
        continue;
      }

      v1::Node& backward = *graph_.add_nodes();
      backward.set_name(Unique(absl::StrCat(node.name(), "/", rule.op), node_names_));
      backward.set_op(std::string(rule.op));
      for (absl::string_view operand : rule.inputs) {
        backward.add_inputs(operand == "dy" ? gradients_.at(node.outputs(0))
                                            : *Find(node, op, operand));
      }
      for (const AttributeRule& attribute : FindOperator(rule.op)->attributes) {
        auto value = node.attributes().find(std::string(attribute.name));
        if (value != node.attributes().end())
          (*backward.mutable_attributes())[value->first] = value->second;
      }
      for (absl::string_view operand : rule.of) {
        const std::string& tensor = *Find(node, op, operand);
        const std::string gradient = absl::StrCat("d(", tensor, ")");
        backward.add_outputs(Unique(
            uses_[tensor] == 1 ? gradient : absl::StrCat(gradient, " from ", node.name()), names_));
        if (is_active(operand)) {
          Contribute(position, InputIndex(op, operand), *backward.outputs().rbegin());
        }
      }
    }
  }

  // Adds a part; with the last one the gradient is complete.
  void Contribute(int position, int input, std::string part) {
    const std::string& tensor = forward_.nodes(position).inputs(input);
    std::vector<Contribution>& parts = parts_[tensor];
    parts.push_back({position, input, std::move(part)});
    if (parts.size() < uses_.at(tensor)) return;
    if (parts.size() == 1) {
      gradients_[tensor] = parts.front().tensor;
      return;
    }
    std::ranges::sort(parts, {}, [](const Contribution& c) { return std::pair(c.node, c.input); });
    const std::string gradient = absl::StrCat("d(", tensor, ")");
    v1::Node& sum = *graph_.add_nodes();
    sum.set_name(Unique(absl::StrCat(gradient, "/Accumulate"), node_names_));
    sum.set_op("Accumulate");
    for (const Contribution& contribution : parts) sum.add_inputs(contribution.tensor);
    sum.add_outputs(Unique(gradient, names_));
    gradients_[tensor] = sum.outputs(0);
  }

  static int InputIndex(const Operator& op, absl::string_view operand) {
    return std::ranges::find(op.inputs, operand, &Operand::name) - op.inputs.begin();
  }

  // `name`, with primes where the forward graph has taken it.
  static std::string Unique(std::string name, absl::flat_hash_set<std::string>& taken) {
    while (!taken.insert(name).second) name += "'";
    return name;
  }

  const v1::Graph& forward_;
  const TensorTypes& types_;
  v1::Graph graph_;
  absl::flat_hash_set<std::string> parameters_;
  absl::flat_hash_set<std::string> names_;
  absl::flat_hash_set<std::string> node_names_;
  absl::flat_hash_set<std::string> active_;
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
  // Which shapes are equal does not depend on the batch: only equal ranks make an addend repeat
  // nothing.
  ASSIGN_OR_RETURN(const TensorTypes types, InferTypes(forward, /*batch=*/1));
  return Differentiation(forward, types).Run();
}

}  // namespace muster
