#include "lib/graph/tensor_parallel/plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "lib/graph/attributes.h"
#include "lib/status/status.h"

namespace muster {
namespace {

std::string Described(const v1::Node& node) {
  return absl::StrCat("node '", node.name(), "' (", node.op(), ")");
}

// Tries to divide every linear layer that begins a part, except the refused ones.
class Attempt {
 public:
  Attempt(const v1::Graph& graph, const TensorTypes& types, int degree,
          const absl::flat_hash_set<int>& refused)
      : graph_(graph), types_(types), degree_(degree), refused_(refused) {
    for (const v1::Parameter& parameter : graph.parameters()) {
      parameters_[parameter.name()].is_trained = !parameter.has_statistic_momentum();
    }
  }

  // A part of the graph that cannot be divided: where it begins, and why.
  struct Obstacle {
    std::vector<int> starts;  // nodes
    std::string why;
  };

  // Returns the first obstacle, or nothing if all parts fit.
  absl::optional<Obstacle> Run() {
    for (int i = 0; i < graph_.nodes_size() && !obstacle_; ++i) Visit(i);
    if (!obstacle_) CheckRoles();
    if (!obstacle_) CheckUses();
    if (!obstacle_) CountUnits();
    return obstacle_;
  }

  absl::Status CheckHeads() const {
    for (const Part& part : parts_) {
      if (part.heads == 0 || part.heads >= degree_) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          Described(graph_.nodes(part.attention)), " has ", part.heads, " heads, which ", degree_,
          " tensor-parallel devices cannot share: use at most ", part.heads));
    }
    return absl::OkStatus();
  }

  TensorSplits Splits() {
    TensorSplits splits;
    for (const auto& [name, place] : places_) splits[name] = SplitOf(place);
    for (const auto& [name, uses] : parameters_) {
      if (uses.divided) splits[name] = SplitOf(*uses.divided);
    }
    return splits;
  }

 private:
  // Tensors that are divided alike along one dimension. Sets are merged: see Root().
  struct Dimension {
    int parent;
    int part;
    int64_t size;
    int64_t blocks = 0;  // 0: not known yet
  };

  // Dimensions that are divided into the same units.
  struct Part {
    int parent;
    int64_t heads = 0;   // 0: no attention
    int attention = -1;  // its node
    int64_t units = 0;
    std::vector<int> starts = {};
  };

  struct Place {
    int dim;
    int dimension;
  };

  struct ParameterUses {
    bool is_trained = false;
    bool is_whole = false;  // a node reads all of it
    absl::optional<Place> divided;
  };

  template <typename Sets>
  static int Root(Sets& sets, int i) {
    while (sets[i].parent != i) i = sets[i].parent = sets[sets[i].parent].parent;
    return i;
  }

  int PartOf(int dimension) { return Root(parts_, dimensions_[Root(dimensions_, dimension)].part); }

  int NewDimension(int64_t size, int part) {
    const int i = static_cast<int>(dimensions_.size());
    dimensions_.push_back({.parent = i, .part = part, .size = size});
    return i;
  }

  int NewPart(int start) {
    const int i = static_cast<int>(parts_.size());
    parts_.push_back({.parent = i, .starts = {start}});
    return i;
  }

  void Fail(int dimension, std::string why) {
    if (!obstacle_) obstacle_ = Obstacle{parts_[PartOf(dimension)].starts, std::move(why)};
  }

  void MergeParts(int a, int b, int node) {
    a = Root(parts_, a);
    b = Root(parts_, b);
    if (a == b) return;
    Part& kept = parts_[a];
    const Part& gone = parts_[b];
    kept.starts.insert(kept.starts.end(), gone.starts.begin(), gone.starts.end());
    parts_[b].parent = a;
    if (gone.heads != 0) SetHeads(a, gone.heads, gone.attention, node);
  }

  void SetHeads(int part, int64_t heads, int attention, int node) {
    Part& own = parts_[Root(parts_, part)];
    if (own.heads != 0 && own.heads != heads && !obstacle_) {
      obstacle_ = Obstacle{own.starts, absl::StrCat(Described(graph_.nodes(node)), " joins ",
                                                    own.heads, " and ", heads, " heads")};
    }
    own.heads = heads;
    own.attention = attention;
  }

  void SetBlocks(int dimension, int64_t blocks, int node) {
    Dimension& own = dimensions_[Root(dimensions_, dimension)];
    if (own.blocks != 0 && own.blocks != blocks) {
      return Fail(dimension, absl::StrCat(Described(graph_.nodes(node)), " reads as ", blocks,
                                          " blocks a tensor of ", own.blocks));
    }
    own.blocks = blocks;
  }

  void MergeDimensions(int a, int b, int node) {
    MergeParts(PartOf(a), PartOf(b), node);
    a = Root(dimensions_, a);
    b = Root(dimensions_, b);
    if (a == b) return;
    if (dimensions_[a].size != dimensions_[b].size) {
      return Fail(a, absl::StrCat(Described(graph_.nodes(node)), " joins dimensions of ",
                                  dimensions_[a].size, " and ", dimensions_[b].size));
    }
    const int64_t blocks = dimensions_[b].blocks;
    dimensions_[b].parent = a;
    if (blocks != 0) SetBlocks(a, blocks, node);
  }

  const std::vector<int64_t>& Shape(const std::string& tensor) const {
    return types_.at(tensor).shape;
  }

  const Place* PlaceOf(const std::string& tensor) const {
    const auto place = places_.find(tensor);
    return place == places_.end() ? nullptr : &place->second;
  }

  // Returns the tensor's divided dimension if that is its last one.
  absl::optional<int> Last(const std::string& tensor) const {
    const Place* place = PlaceOf(tensor);
    if (place == nullptr || place->dim + 1 != std::ssize(Shape(tensor))) return absl::nullopt;
    return place->dimension;
  }

  bool IsTrained(const std::string& tensor) const {
    const auto parameter = parameters_.find(tensor);
    return parameter != parameters_.end() && parameter->second.is_trained;
  }

  void PlaceLast(const std::string& tensor, int dimension) {
    places_[tensor] = {static_cast<int>(Shape(tensor).size()) - 1, dimension};
  }

  void UseWhole(const std::string& tensor) {
    const auto parameter = parameters_.find(tensor);
    if (parameter != parameters_.end()) parameter->second.is_whole = true;
  }

  void UsePart(const std::string& parameter, int dim, int dimension, int node) {
    absl::optional<Place>& divided = parameters_.at(parameter).divided;
    if (!divided) {
      divided = Place{dim, dimension};
    } else if (divided->dim != dim) {
      MergeParts(PartOf(divided->dimension), PartOf(dimension), node);
      Fail(dimension, absl::StrCat(Described(graph_.nodes(node)), " divides '", parameter,
                                   "' along another dimension than a node before it"));
    } else {
      MergeDimensions(divided->dimension, dimension, node);
    }
  }

  void Visit(int i) {
    const v1::Node& node = graph_.nodes(i);
    const std::string& op = node.op();
    if (const absl::optional<LinearWeight> weight = LinearWeightOf(node, types_);
        weight && IsTrained(node.inputs(1))) {
      return VisitLinear(i, *weight);
    }
    if (op == "Embedding" && IsTrained(node.inputs(1))) return VisitEmbedding(i);
    const bool is_divided = std::ranges::any_of(
        node.inputs(), [&](const std::string& x) { return PlaceOf(x) != nullptr; });
    if (!is_divided) return VisitWhole(node);
    if (IsPointwise(op) || KeepsRows(node, types_)) return VisitRows(i);
    if (IsPointwiseOfTwo(op)) return VisitPair(i);
    if (op == "SelfAttention") return VisitSelfAttention(i);
    if (op == "Attention") return VisitAttention(i);
    if (op == "Split") return VisitSplit(i);
    if (op == "SoftmaxCrossEntropy") return VisitLoss(i);
    Refuse(i);
  }

  void VisitWhole(const v1::Node& node) {
    for (const std::string& input : node.inputs()) UseWhole(input);
  }

  // Refuses the parts that divide the node's inputs.
  void Refuse(int i) {
    for (const std::string& input : graph_.nodes(i).inputs()) {
      if (const Place* place = PlaceOf(input)) {
        Fail(place->dimension, absl::StrCat(Described(graph_.nodes(i)), " needs all of '", input,
                                            "' on each device"));
      }
    }
  }

  void VisitLinear(int i, const LinearWeight& weight) {
    const v1::Node& node = graph_.nodes(i);
    const std::string &x = node.inputs(0), &w = node.inputs(1);
    const bool has_bias = node.inputs_size() > 2;
    if (PlaceOf(x) != nullptr) {
      const absl::optional<int> inputs = Last(x);
      if (!inputs || (has_bias && PlaceOf(node.inputs(2)) != nullptr)) return Refuse(i);
      UsePart(w, weight.inputs_dim, *inputs, i);
      if (has_bias) UseWhole(node.inputs(2));
      return;
    }
    // A bias that is no parameter is whole on every rank.
    if (refused_.contains(i) || (has_bias && !IsTrained(node.inputs(2)))) return VisitWhole(node);
    const int64_t size = Shape(w)[weight.outputs_dim];
    const int outputs = NewDimension(size, NewPart(i));
    UsePart(w, weight.outputs_dim, outputs, i);
    if (has_bias) UsePart(node.inputs(2), 0, outputs, i);
    PlaceLast(node.outputs(0), outputs);
  }

  void VisitEmbedding(int i) {
    const v1::Node& node = graph_.nodes(i);
    const std::vector<int64_t>& table = Shape(node.inputs(1));
    if (refused_.contains(i) || table[0] < table[1]) return VisitWhole(node);
    UsePart(node.inputs(1), 0, NewDimension(table[0], NewPart(i)), i);
  }

  void VisitRows(int i) {
    const v1::Node& node = graph_.nodes(i);
    const absl::optional<int> rows = Last(node.inputs(0));
    if (!rows) return Refuse(i);
    if (node.op() == "Dropout") SetBlocks(*rows, 1, i);
    PlaceLast(node.outputs(0), *rows);
  }

  // An operand that is whole has one element in the last dimension, or is a parameter that can be
  // divided, too.
  void VisitPair(int i) {
    const v1::Node& node = graph_.nodes(i);
    const int64_t size = Shape(node.outputs(0)).back();
    absl::optional<int> rows;
    for (const std::string& input : node.inputs()) {
      if (PlaceOf(input) == nullptr) continue;
      const absl::optional<int> own = Last(input);
      if (!own || Shape(input).back() != size) return Refuse(i);
      if (rows) MergeDimensions(*rows, *own, i);
      rows = own;
    }
    for (const std::string& input : node.inputs()) {
      if (PlaceOf(input) != nullptr) continue;
      const std::vector<int64_t>& shape = Shape(input);
      if (shape.empty() || shape.back() == 1) {
        UseWhole(input);
      } else if (IsTrained(input)) {
        UsePart(input, static_cast<int>(shape.size()) - 1, *rows, i);
      } else {
        return Refuse(i);
      }
    }
    PlaceLast(node.outputs(0), *rows);
  }

  // A mask with a head dimension would have to be divided, too.
  bool HasMaskOfHeads(const v1::Node& node, int mask) const {
    return node.inputs_size() > mask && Shape(node.inputs(mask))[1] != 1;
  }

  // Places the outputs of attention in the units of `part`.
  void PlaceAttention(int i, int part) {
    const v1::Node& node = graph_.nodes(i);
    const int64_t heads = IntegerAttribute(node, "heads");
    SetHeads(part, heads, i, i);
    const int y = NewDimension(Shape(node.outputs(0)).back(), part);
    SetBlocks(y, 1, i);
    PlaceLast(node.outputs(0), y);
    places_[node.outputs(1)] = {1, NewDimension(heads, part)};
  }

  void VisitSelfAttention(int i) {
    const v1::Node& node = graph_.nodes(i);
    const absl::optional<int> qkv = Last(node.inputs(0));
    if (!qkv || HasMaskOfHeads(node, 1)) return Refuse(i);
    if (node.inputs_size() > 1 && PlaceOf(node.inputs(1)) != nullptr) return Refuse(i);
    SetBlocks(*qkv, 3, i);
    PlaceAttention(i, PartOf(*qkv));
  }

  void VisitAttention(int i) {
    const v1::Node& node = graph_.nodes(i);
    if (HasMaskOfHeads(node, 3)) return Refuse(i);
    if (node.inputs_size() > 3 && PlaceOf(node.inputs(3)) != nullptr) return Refuse(i);
    int part = -1;
    for (int x = 0; x < 3; ++x) {
      const absl::optional<int> own = Last(node.inputs(x));
      if (!own) return Refuse(i);
      SetBlocks(*own, 1, i);
      if (part >= 0) MergeParts(part, PartOf(*own), i);
      part = PartOf(*own);
    }
    PlaceAttention(i, part);
  }

  // Equal parts of the last dimension become tensors of one block.
  void VisitSplit(int i) {
    const v1::Node& node = graph_.nodes(i);
    const absl::optional<int> rows = Last(node.inputs(0));
    const int rank = static_cast<int>(Shape(node.inputs(0)).size());
    const std::vector<int64_t> sizes = IntegersAttribute(node, "sizes");
    if (!rows || AxisAttribute(node, rank) != rank - 1 ||
        std::ranges::count(sizes, sizes[0]) != std::ssize(sizes)) {
      return Refuse(i);
    }
    SetBlocks(*rows, std::ssize(sizes), i);
    for (const std::string& output : node.outputs()) {
      const int dimension = NewDimension(sizes[0], PartOf(*rows));
      SetBlocks(dimension, 1, i);
      PlaceLast(output, dimension);
    }
  }

  void VisitLoss(int i) {
    const absl::optional<int> classes = Last(graph_.nodes(i).inputs(0));
    if (!classes) return Refuse(i);
    SetBlocks(*classes, 1, i);
  }

  // Loss and correct are read on every rank. The logits have no reader in a split graph.
  void CheckRoles() {
    for (const std::string* role : {&graph_.loss(), &graph_.correct()}) {
      const Place* place = PlaceOf(*role);
      if (place != nullptr) Fail(place->dimension, absl::StrCat("'", *role, "' is an output"));
    }
  }

  void CheckUses() {
    for (const v1::Parameter& parameter : graph_.parameters()) {
      const ParameterUses& uses = parameters_.at(parameter.name());
      if (!uses.divided || !uses.is_whole) continue;
      return Fail(uses.divided->dimension,
                  absl::StrCat("another node needs all of parameter '", parameter.name(), "'"));
    }
  }

  // Finds the units of every part: its heads, or the elements of a block.
  void CountUnits() {
    for (int d = 0; d < std::ssize(dimensions_); ++d) {
      if (Root(dimensions_, d) != d) continue;
      Part& part = parts_[PartOf(d)];
      const int64_t block = dimensions_[d].size / std::max<int64_t>(1, dimensions_[d].blocks);
      if (part.units == 0) part.units = part.heads != 0 ? part.heads : block;
      const bool fits = part.heads != 0 ? block % part.units == 0 : block == part.units;
      if (!fits) {
        return Fail(d, absl::StrCat(block, " elements cannot be divided like ", part.units));
      }
      if (part.heads == 0 && block < degree_) {
        return Fail(d, absl::StrCat(block, " elements are fewer than ", degree_, " devices"));
      }
    }
  }

  DividedTensor SplitOf(const Place& place) {
    const int d = Root(dimensions_, place.dimension);
    const Dimension& dimension = dimensions_[d];
    return {.dim = place.dim,
            .split = {.size = dimension.size,
                      .units = parts_[PartOf(d)].units,
                      .blocks = std::max<int64_t>(1, dimension.blocks)}};
  }

  const v1::Graph& graph_;
  const TensorTypes& types_;
  const int degree_;
  const absl::flat_hash_set<int>& refused_;
  std::vector<Dimension> dimensions_;
  std::vector<Part> parts_;
  absl::flat_hash_map<std::string, Place> places_;  // of divided outputs
  absl::flat_hash_map<std::string, ParameterUses> parameters_;
  absl::optional<Obstacle> obstacle_;
};

absl::Status NothingToDivide(const v1::Graph& graph, int degree, absl::string_view why) {
  std::string reason(why);
  if (reason.empty()) {
    const auto node = std::ranges::find_if(graph.nodes(), [&](const v1::Node& n) {
      return std::ranges::any_of(n.inputs(), [&](const std::string& input) {
        return std::ranges::count(graph.parameters(), input, &v1::Parameter::name) > 0;
      });
    });
    if (node != graph.nodes().end()) {
      reason = absl::StrCat(Described(*node), " cannot be divided");
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("the model has no part that ", degree,
                                                 " tensor-parallel devices can share: ", reason,
                                                 "; use a tensor-parallel degree of 1"));
}

}  // namespace

bool IsPointwise(const std::string& op) {
  static const auto& ops = *new absl::flat_hash_set<std::string>(
      {"Relu", "Silu", "Tanh", "Sigmoid",   "Erf",         "Exp",    "Log",
       "Sqrt", "Neg",  "Gelu", "Abs",       "Sin",         "Cos",    "Softplus",
       "Elu",  "Cast", "Clip", "LeakyRelu", "HardSigmoid", "Dropout"});
  return ops.contains(op);
}

bool IsPointwiseOfTwo(const std::string& op) {
  static const auto& ops = *new absl::flat_hash_set<std::string>(
      {"Add", "Sub", "Mul", "Div", "Pow", "Minimum", "Maximum"});
  return ops.contains(op);
}

bool KeepsRows(const v1::Node& node, const TensorTypes& types) {
  static const auto& ops = *new absl::flat_hash_set<std::string>(
      {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"});
  if (!ops.contains(node.op())) return false;
  if (node.op() == "Transpose") {
    const std::vector<int64_t> permutation = IntegersAttribute(node, "permutation");
    return !permutation.empty() && permutation.back() + 1 == std::ssize(permutation);
  }
  const std::vector<int64_t>&x = types.at(node.inputs(0)).shape,
        &y = types.at(node.outputs(0)).shape;
  return !x.empty() && !y.empty() && x.back() == y.back();
}

absl::optional<LinearWeight> LinearWeightOf(const v1::Node& node, const TensorTypes& types) {
  if (node.op() == "Linear") return LinearWeight{.outputs_dim = 0, .inputs_dim = 1};
  if (node.op() != "MatMul" || IntegerAttribute(node, "transpose_a") != 0 ||
      types.at(node.inputs(1)).shape.size() != 2) {
    return absl::nullopt;
  }
  const int outputs = IntegerAttribute(node, "transpose_b") != 0 ? 0 : 1;
  return LinearWeight{.outputs_dim = outputs, .inputs_dim = 1 - outputs};
}

absl::StatusOr<TensorSplits> PlanSplits(const v1::Graph& graph, const TensorTypes& types,
                                        int degree) {
  absl::flat_hash_set<int> refused;
  std::string first_obstacle;
  // Every attempt refuses at least one more node, so the loop ends.
  while (true) {
    Attempt attempt(graph, types, degree, refused);
    const absl::optional<Attempt::Obstacle> obstacle = attempt.Run();
    if (!obstacle) {
      RETURN_IF_ERROR(attempt.CheckHeads());
      TensorSplits splits = attempt.Splits();
      if (splits.empty()) return NothingToDivide(graph, degree, first_obstacle);
      return splits;
    }
    if (first_obstacle.empty()) first_obstacle = obstacle->why;
    refused.insert(obstacle->starts.begin(), obstacle->starts.end());
  }
}

}  // namespace muster
