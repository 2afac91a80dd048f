#include "lib/graph/onnx/initializer_uses.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "lib/graph/onnx/onnx_file.h"
#include "lib/graph/onnx/onnx_node.h"

namespace muster {
namespace {

using onnx::GraphProto;
using onnx::NodeProto;

constexpr size_t kNeighboursMax = 64;

// The start of an initialiser's path.
struct Edge {
  std::string initializer;
  NodeProto* node;
  int input;
  friend auto operator<=>(const Edge&, const Edge&) = default;
};

// The known properties of a value.
struct Value {
  bool of_data = false;
  bool of_weights = false;  // of_data, and a weight came before it
  bool is_product = false;  // a product with weights, in any shape
  bool is_norm = false;     // a normalised value, also times a gain
  bool is_derived = false;  // !of_data: the result of arithmetic
  std::set<Edge> edges;     // !of_data: the initialisers it is made of
  Neighbours weights;       // of_data: the nearest weights before it
};

bool IsOneOf(const std::string& op, std::initializer_list<absl::string_view> ops) {
  return std::ranges::find(ops, op) != ops.end();
}

bool IsNorm(const std::string& op) {
  return IsOneOf(op, {"BatchNormalization", "LayerNormalization", "GroupNormalization",
                      "InstanceNormalization", "RMSNormalization"});
}

bool IsProduct(const std::string& op) {
  return IsOneOf(op, {"Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "LSTM", "GRU", "RNN"});
}

// Returns whether the operator only moves elements.
bool Moves(const std::string& op) {
  return IsOneOf(op, {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast",
                      "Slice", "Split", "Concat", "Expand", "Gather"});
}

bool OnlyShapes(const std::string& op) {
  return IsOneOf(op,
                 {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast"});
}

void AddNames(const Neighbours& from, Neighbours& to) {
  for (const auto& neighbour : from) {
    if (to.size() >= kNeighboursMax) return;
    to.insert(neighbour);
  }
}

class Finder {
 public:
  explicit Finder(GraphProto& graph) {
    AddInitializers(graph);
    for (const onnx::ValueInfoProto& input : graph.input()) {
      if (!known_.contains(input.name())) values_[input.name()].of_data = true;
    }
    Forward(graph);
    Backward(graph);
  }

  InitializerUses Uses() && {
    for (auto& [name, uses] : uses_) {
      for (InitializerUse& use : uses) {
        for (const std::string& output : use.node->output()) AddNames(behind_[output], use.behind);
      }
    }
    return std::move(uses_);
  }

 private:
  void AddInitializers(const GraphProto& graph) {
    for (const onnx::TensorProto& tensor : graph.initializer()) {
      known_.insert(tensor.name());
      if (IsFloating(tensor.data_type())) initializers_.insert(tensor.name());
    }
  }

  void Forward(GraphProto& graph) {
    for (NodeProto& node : *graph.mutable_node()) {
      Value result;
      for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
        if (!attribute.has_g()) continue;
        AddInitializers(attribute.g());
        Forward(*attribute.mutable_g());
        for (const onnx::ValueInfoProto& output : attribute.g().output()) {
          Join(values_[output.name()], result);
        }
      }
      std::vector<Value> in(node.input_size());
      for (int i = 0; i < node.input_size(); ++i) {
        in[i] = values_[node.input(i)];
        if (initializers_.contains(node.input(i))) {
          in[i].edges.insert({node.input(i), &node, i});
        }
        Join(in[i], result);
      }
      if (node.op_type() == "Shape" || node.op_type() == "Size") result = {};
      if (result.of_data) {
        for (int i = 0; i < node.input_size(); ++i) {
          if (!in[i].of_data) AddUses(node, i, in);
        }
        Conclude(node, in, result);
      } else if (!Moves(node.op_type())) {
        result.is_derived = true;
      }
      for (const std::string& output : node.output()) {
        if (!output.empty()) values_[output] = result;
      }
    }
  }

  static void Join(const Value& from, Value& to) {
    to.of_data = to.of_data || from.of_data;
    to.of_weights = to.of_weights || from.of_weights;
    to.is_derived = to.is_derived || from.is_derived;
    to.edges.insert(from.edges.begin(), from.edges.end());
    AddNames(from.weights, to.weights);
  }

  // Sets the properties of the result of a node that reads data.
  static void Conclude(const NodeProto& node, const std::vector<Value>& in, Value& result) {
    result.edges.clear();
    result.is_derived = false;
    if (in.empty()) return;
    if (IsProduct(node.op_type())) {
      Neighbours own = WeightsOf(node, in);
      if (!own.empty()) {
        result.weights = std::move(own);
        result.is_product = result.of_weights = true;
      }
    } else if (node.op_type() == "Gather" && !in[0].of_data) {
      result.of_weights = true;
    } else if (IsNorm(node.op_type())) {
      result.weights.clear();
      result.of_weights = result.is_norm = true;
    } else if (OnlyShapes(node.op_type())) {
      result.is_product = in[0].is_product;
      result.is_norm = in[0].is_norm;
    } else if (node.op_type() == "Mul" && in.size() == 2 && in[0].of_data != in[1].of_data) {
      result.is_norm = in[0].is_norm || in[1].is_norm;
    }
  }

  // Returns the initialisers among a product's operands, without its bias.
  static Neighbours WeightsOf(const NodeProto& node, const std::vector<Value>& in) {
    Neighbours names;
    for (size_t i = 0; i < std::min<size_t>(in.size(), 2); ++i) {
      if (in[i].of_data) continue;
      for (const Edge& edge : in[i].edges) names.emplace(edge.initializer, &node);
    }
    return names;
  }

  void AddUses(NodeProto& node, int input, const std::vector<Value>& in) {
    InitializerUse use{.kind = KindOf(node, input, in), .node = &node, .input = input};
    use.is_derived = in[input].is_derived;
    use.on_activations =
        std::ranges::any_of(in, [](const Value& other) { return other.of_weights; });
    if (use.kind == UseKind::kBias) {
      // A bias of an Add belongs to the product that it is added to.
      if (node.op_type() != "Add") use.before = WeightsOf(node, in);
      for (const Value& other : in) {
        if (node.op_type() == "Add" && other.is_product) AddNames(other.weights, use.before);
      }
    } else {
      for (const Value& other : in) AddNames(other.weights, use.before);
    }
    for (const Edge& edge : in[input].edges) {
      use.first = edge.node;
      use.first_input = edge.input;
      uses_[edge.initializer].push_back(use);
    }
  }

  static UseKind KindOf(const NodeProto& node, int input, const std::vector<Value>& in) {
    const std::string& op = node.op_type();
    if (op == "BatchNormalization" && input >= 3) return UseKind::kStatistic;
    if (IsNorm(op)) return UseKind::kNorm;
    if (op == "PRelu") return UseKind::kSlope;
    if (op == "Gather" && input == 0) return UseKind::kTable;
    if (op == "MatMul" || op == "Einsum") return UseKind::kWeight;
    if (IsOneOf(op, {"Conv", "ConvTranspose", "Gemm"})) {
      return input == 2 ? UseKind::kBias : UseKind::kWeight;
    }
    if (IsOneOf(op, {"LSTM", "GRU", "RNN"}) && input <= 3) {
      return input == 3 ? UseKind::kBias : UseKind::kWeight;
    }
    if (op == "Add" && in.size() == 2 && in[1 - input].is_product) return UseKind::kBias;
    // Exporters write a group norm as an instance norm, followed by its gain, followed by its bias.
    if ((op == "Mul" || op == "Add") && in.size() == 2 && in[1 - input].is_norm) {
      return UseKind::kNorm;
    }
    return UseKind::kElementwise;
  }

  // Finds the nearest weights after each value.
  void Backward(const GraphProto& graph) {
    for (int n = graph.node_size() - 1; n >= 0; --n) {
      const NodeProto& node = graph.node(n);
      Neighbours behind;
      std::vector<Value> in(node.input_size());
      for (int i = 0; i < node.input_size(); ++i) {
        in[i] = values_[node.input(i)];
        if (initializers_.contains(node.input(i))) in[i].edges.insert({node.input(i), nullptr, i});
      }
      if (IsProduct(node.op_type())) behind = WeightsOf(node, in);
      if (behind.empty() && !IsNorm(node.op_type())) {
        for (const std::string& output : node.output()) AddNames(behind_[output], behind);
      }
      for (const std::string& input : node.input()) {
        if (!input.empty()) AddNames(behind, behind_[input]);
      }
    }
  }

  absl::flat_hash_set<std::string> initializers_;  // floating ones
  absl::flat_hash_set<std::string> known_;         // all initialisers
  absl::flat_hash_map<std::string, Value> values_;
  absl::flat_hash_map<std::string, Neighbours> behind_;
  InitializerUses uses_;
};

}  // namespace

std::string InitializerUse::ToString() const {
  const std::string at = absl::StrCat(node->op_type(), " '", NameOf(*node), "'");
  switch (kind) {
    case UseKind::kWeight:
      return absl::StrCat("weight of ", at);
    case UseKind::kTable:
      return absl::StrCat("table of ", at);
    case UseKind::kBias:
      return absl::StrCat("bias of ", at);
    case UseKind::kNorm:
      return absl::StrCat("gain or bias of ", at);
    case UseKind::kSlope:
      return absl::StrCat("slope of ", at);
    case UseKind::kStatistic:
      return absl::StrCat("running statistic of ", at);
    case UseKind::kElementwise:
      break;
  }
  return absl::StrCat("operand of ", at);
}

InitializerUses FindInitializerUses(GraphProto& graph) { return Finder(graph).Uses(); }

}  // namespace muster
