#include "lib/graph/tensor_parallel/split.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/graph/attributes.h"
#include "lib/graph/dependence.h"
#include "lib/graph/operator.h"
#include "lib/graph/tensor_parallel/plan.h"
#include "lib/graph/tensor_parallel/rules.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// The batch for which passes compare shapes.
constexpr int64_t kBatch = 2;

class Splitter {
 public:
  Splitter(const v1::Graph& graph, const TensorTypes& types, const TensorSplits& splits,
           const TensorParallel& group)
      : whole_(graph),
        types_(types),
        splits_(splits),
        group_(group),
        differentiable_(DifferentiableInTrained(graph, types)),
        graph_(graph) {
    for (const auto& [name, type] : types) names_.insert(name);
    for (const v1::Node& node : graph.nodes()) node_names_.insert(node.name());
  }

  SplitGraph Run() && {
    SplitGraph result;
    for (v1::Parameter& parameter : *graph_.mutable_parameters()) {
      result.slices.push_back(Slice(parameter));
    }
    graph_.clear_nodes();
    for (const v1::Node& node : whole_.nodes()) Add(node);
    if (splits_.contains(graph_.logits())) graph_.clear_logits();
    result.graph = std::move(graph_);
    return result;
  }

 private:
  const DividedTensor* SplitOf(const std::string& tensor) const {
    const auto split = splits_.find(tensor);
    return split == splits_.end() ? nullptr : &split->second;
  }

  // Gives the parameter its shape on this rank.
  ParameterSlice Slice(v1::Parameter& parameter) const {
    const std::vector<int64_t>& shape = types_.at(parameter.name()).shape;
    const DividedTensor* divided = SplitOf(parameter.name());
    if (divided == nullptr) return {.run_elements = types_.at(parameter.name()).elements()};
    parameter.set_shape(divided->dim, SizeOf(divided->split, group_));
    return SliceOf(shape, divided->dim, divided->split, group_);
  }

  void Add(v1::Node node) {
    const bool is_divided = std::ranges::any_of(
        node.inputs(), [&](const std::string& x) { return splits_.contains(x); });
    if (!is_divided) {
      *graph_.add_nodes() = std::move(node);
      return;
    }
    SetAttributes(node);
    const bool is_term = IsTerm(node);
    std::string bias;
    if (is_term && node.op() == "Linear" && node.inputs_size() > 2) {
      bias = node.inputs(2);
      node.mutable_inputs()->RemoveLast();
    }
    for (std::string& input : *node.mutable_inputs()) {
      if (!splits_.contains(input) && differentiable_.contains(input)) {
        input = Shared(input, node.name());
      }
    }
    if (is_term) {
      AddSum(std::move(node), bias);
    } else {
      *graph_.add_nodes() = std::move(node);
    }
  }

  // Returns whether the node's output on a rank is a term of the whole output.
  bool IsTerm(const v1::Node& node) const {
    if (node.op() == "Embedding") return true;
    const absl::optional<LinearWeight> weight = LinearWeightOf(node, types_);
    if (!weight) return false;
    const DividedTensor* w = SplitOf(node.inputs(1));
    return w != nullptr && w->dim == weight->inputs_dim;
  }

  // Adds a node, the sum of its outputs over the ranks, and the bias once.
  void AddSum(v1::Node node, const std::string& bias) {
    const std::string y = node.outputs(0), name = node.name();
    const std::string term = Unique(absl::StrCat(y, " term"), names_);
    node.set_outputs(0, term);
    *graph_.add_nodes() = std::move(node);
    const std::string sum = bias.empty() ? y : Unique(absl::StrCat(y, " sum"), names_);
    AddNode(absl::StrCat(name, "/AllReduce"), "AllReduce", {term}, sum);
    if (!bias.empty()) AddNode(absl::StrCat(name, "/Add"), "Add", {sum, bias}, y);
  }

  // Returns a whole tensor for nodes that compute with parts. All these nodes share it, so that
  // their gradients are added before the ranks sum them.
  const std::string& Shared(const std::string& tensor, const std::string& reader) {
    auto [shared, is_new] = shared_.try_emplace(tensor);
    if (is_new) {
      shared->second = Unique(absl::StrCat(tensor, " shared"), names_);
      AddNode(absl::StrCat(reader, "/GradientAllReduce"), "GradientAllReduce", {tensor},
              shared->second);
    }
    return shared->second;
  }

  void SetAttributes(v1::Node& node) const {
    auto& attributes = *node.mutable_attributes();
    const std::string& op = node.op();
    if (op == "SelfAttention" || op == "Attention") {
      attributes["heads"].set_i(UnitsOf(SplitOf(node.inputs(0))->split.units, group_).size);
    } else if (op == "Split") {
      auto& sizes = *attributes["sizes"].mutable_integers()->mutable_values();
      for (int k = 0; k < sizes.size(); ++k) {
        sizes.Set(k, SizeOf(SplitOf(node.outputs(k))->split, group_));
      }
    } else if (op == "Reshape") {
      auto& shape = *attributes["shape"].mutable_integers()->mutable_values();
      int64_t& last = *shape.Mutable(shape.size() - 1);
      if (last > 0) last = SizeOf(SplitOf(node.outputs(0))->split, group_);
    } else if (op == "Dropout" || op == "SoftmaxCrossEntropy") {
      SetPart(SplitOf(node.inputs(0))->split, node);
    } else if (op == "Embedding") {
      SetPart(SplitOf(node.inputs(1))->split, node);
    }
    if (op == "SoftmaxCrossEntropy") attributes["ranks"].set_i(group_.degree);
  }

  void SetPart(const DimensionSplit& split, v1::Node& node) const {
    (*node.mutable_attributes())["first"].set_i(ElementsOf(split, group_).first);
    (*node.mutable_attributes())["whole"].set_i(split.size);
  }

  void AddNode(std::string name, absl::string_view op, const std::vector<std::string>& inputs,
               const std::string& output) {
    v1::Node& node = *graph_.add_nodes();
    node.set_name(Unique(std::move(name), node_names_));
    node.set_op(std::string(op));
    node.mutable_inputs()->Add(inputs.begin(), inputs.end());
    node.add_outputs(output);
  }

  static std::string Unique(std::string name, absl::flat_hash_set<std::string>& taken) {
    while (!taken.insert(name).second) name += "'";
    return name;
  }

  const v1::Graph& whole_;
  const TensorTypes& types_;
  const TensorSplits& splits_;
  const TensorParallel group_;
  const absl::flat_hash_set<std::string> differentiable_;
  v1::Graph graph_;
  absl::flat_hash_set<std::string> names_;
  absl::flat_hash_set<std::string> node_names_;
  absl::flat_hash_map<std::string, std::string> shared_;
};

}  // namespace

absl::StatusOr<SplitGraph> SplitTensors(const v1::Graph& graph, const TensorTypes& types,
                                        const TensorParallel& group) {
  ASSIGN_OR_RETURN(const TensorSplits splits, PlanSplits(graph, types, group.degree));
  SplitGraph split = Splitter(graph, types, splits, group).Run();
  // A broken rule is a defect of this pass. It costs the job, but not the process.
  const auto check = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const TensorTypes own, InferTypes(split.graph, kBatch));
    return CheckPlacements(split.graph, own, splits, group).status();
  };
  if (const absl::Status status = check(); !status.ok()) {
    return absl::InternalError(absl::StrCat("wrong tensor-parallel graph: ", status.message()));
  }
  return split;
}

}  // namespace muster
