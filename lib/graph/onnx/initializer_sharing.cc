#include "lib/graph/onnx/initializer_sharing.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/graph/glob.h"
#include "lib/graph/onnx/initializer_uses.h"
#include "lib/graph/onnx/onnx_node.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using onnx::GraphProto;
using onnx::NodeProto;
using onnx::TensorProto;

constexpr size_t kUsesShown = 4;

// The uses with paths that begin at one input of one node.
struct Edge {
  NodeProto* node;
  int input;
  std::vector<const InitializerUse*> uses;
};

std::vector<Edge> EdgesOf(const std::vector<InitializerUse>& uses) {
  std::vector<Edge> edges;
  for (const InitializerUse& use : uses) {
    const auto found = std::ranges::find_if(edges, [&](const Edge& edge) {
      return edge.node == use.first && edge.input == use.first_input;
    });
    if (found != edges.end()) {
      found->uses.push_back(&use);
    } else {
      edges.push_back({use.first, use.first_input, {&use}});
    }
  }
  return edges;
}

bool IsMatrix(const InitializerUse& use) {
  return use.kind == UseKind::kWeight || use.kind == UseKind::kTable;
}

// Returns whether two sets of products have the same weights in different places, which means a
// layer that is applied twice. The same products prove nothing: branches that split or join have
// them in common.
bool SameWeightsElsewhere(const Neighbours& a, const Neighbours& b) {
  std::set<std::string> of_a, of_b;
  for (const auto& [weight, node] : a) of_a.insert(weight);
  for (const auto& [weight, node] : b) {
    of_b.insert(weight);
    if (a.contains({weight, node})) return false;
  }
  return !of_a.empty() && of_a == of_b;
}

// Returns whether two uses of a tensor are uses of one tensor, judged by their neighbours. Two
// inputs of one node are two tensors: a norm's gain and bias, or two tokens before the rows.
bool BelongTogether(const InitializerUse& a, const InitializerUse& b) {
  if (a.kind != b.kind) return false;
  if (a.node == b.node) return a.input == b.input;
  // The neighbours say nothing if arithmetic comes first.
  if (a.is_derived || b.is_derived) return true;
  if (a.kind == UseKind::kBias) return SameWeightsElsewhere(a.before, b.before);
  const bool of_norms = a.kind == UseKind::kNorm || a.kind == UseKind::kStatistic;
  if (of_norms && a.input != b.input) return false;
  return SameWeightsElsewhere(a.before, b.before) || SameWeightsElsewhere(a.behind, b.behind);
}

bool BelongTogether(const Edge& a, const Edge& b) {
  return std::ranges::any_of(a.uses, [&](const InitializerUse* x) {
    return std::ranges::any_of(b.uses,
                               [&](const InitializerUse* y) { return BelongTogether(*x, *y); });
  });
}

// Returns groups of edges that are one tensor each, by their positions in `edges`. The group of the
// first edge comes first.
std::vector<std::vector<size_t>> GroupsOf(const std::vector<Edge>& edges, bool all_apart) {
  std::vector<std::vector<size_t>> groups;
  for (size_t e = 0; e < edges.size(); ++e) {
    std::vector<size_t> own = {e};
    // The edge joins every group that it belongs to. An edge that belongs to two groups merges
    // them.
    for (auto group = groups.begin(); !all_apart && group != groups.end();) {
      const bool joins = std::ranges::any_of(
          *group, [&](size_t other) { return BelongTogether(edges[e], edges[other]); });
      if (joins) own.insert(own.begin(), group->begin(), group->end());
      group = joins ? groups.erase(group) : group + 1;
    }
    std::ranges::sort(own);
    groups.push_back(std::move(own));
  }
  std::ranges::sort(groups);
  return groups;
}

std::string Shown(const std::vector<Edge>& edges) {
  std::vector<std::string> names;
  for (const Edge& edge : edges) {
    if (names.size() == kUsesShown) break;
    names.push_back(edge.uses.front()->ToString());
  }
  const size_t more = edges.size() - names.size();
  return absl::StrCat(absl::StrJoin(names, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

class Separator {
 public:
  Separator(const v1::OnnxModel& model, OnnxFile& file) : model_(model), file_(file) {
    const GraphProto& graph = file.graph();
    for (const TensorProto& tensor : graph.initializer()) names_.insert(tensor.name());
    for (const onnx::ValueInfoProto& input : graph.input()) names_.insert(input.name());
    for (const NodeProto& node : graph.node()) {
      names_.insert(node.output().begin(), node.output().end());
    }
  }

  absl::StatusOr<Sharing> Run() && {
    GraphProto& graph = *file_.mutable_graph();
    RETURN_IF_ERROR(JoinTransposed(graph));
    RETURN_IF_ERROR(JoinEqual(graph));
    const InitializerUses uses = FindInitializerUses(graph);
    const int count = graph.initializer_size();
    std::vector<std::pair<std::string, const TensorProto*>> copies;
    for (int i = 0; i < count; ++i) {
      const TensorProto& tensor = graph.initializer(i);
      const auto own = uses.find(tensor.name());
      if (own == uses.end() || tensor.dims_size() == 0) continue;
      DoubtTwice(tensor, own->second);
      const std::vector<Edge> edges = EdgesOf(own->second);
      if (edges.size() < 2 || Matches(model_.tie(), tensor.name())) continue;
      const bool all_apart = Matches(model_.untie(), tensor.name());
      if (!all_apart && !BelongsToProducts(own->second)) {
        ASSIGN_OR_RETURN(const bool plain, HasOneValue(tensor));
        if (!plain) {
          NoteOneTensor(tensor, edges);
          continue;
        }
      }
      Separate(tensor, edges, GroupsOf(edges, all_apart), copies);
    }
    for (const auto& [name, from] : copies) {
      TensorProto copy = *from;
      copy.set_name(name);
      *graph.add_initializer() = std::move(copy);
    }
    RemoveReplacedIdentities(graph);
    return std::move(sharing_);
  }

 private:
  static bool Matches(const google::protobuf::RepeatedPtrField<std::string>& patterns,
                      const std::string& name) {
    return std::ranges::any_of(
        patterns, [&](const std::string& pattern) { return MatchesGlob(pattern, name); });
  }

  // Returns whether all uses are biases, gains or statistics, which their neighbouring weights
  // distinguish.
  static bool BelongsToProducts(const std::vector<InitializerUse>& uses) {
    return std::ranges::all_of(uses, [](const InitializerUse& use) {
      return use.kind == UseKind::kBias || use.kind == UseKind::kNorm ||
             use.kind == UseKind::kStatistic;
    });
  }

  // An exporter that merges equal nodes leaves one path to two places. Such uses cannot be
  // separated, so they are reported as a doubt.
  void DoubtTwice(const TensorProto& tensor, const std::vector<InitializerUse>& uses) {
    for (const InitializerUse& use : uses) {
      const auto twin = std::ranges::find_if(uses, [&](const InitializerUse& other) {
        return other.node == use.node && other.input > use.input && other.first == use.first &&
               other.first_input == use.first_input;
      });
      if (twin == uses.end() || use.kind != UseKind::kElementwise) continue;
      sharing_.doubts.push_back(
          absl::StrCat("'", tensor.name(), "' (twice ", use.ToString(), ", by one node)"));
      return;
    }
  }

  absl::StatusOr<bool> HasOneValue(const TensorProto& tensor) const {
    ASSIGN_OR_RETURN(const std::vector<float> values, file_.Floats(tensor));
    return IsPlain(values);
  }

  // An exporter that folds constants writes the transpose of a table beside it if a head shares the
  // table's weight. Equal numbers in transposed order are no coincidence. So the product reads the
  // table again, through a Transpose.
  absl::Status JoinTransposed(GraphProto& graph) {
    const InitializerUses uses = FindInitializerUses(graph);
    const auto has_use = [&](const std::string& name, UseKind kind) {
      const auto found = uses.find(name);
      return found != uses.end() &&
             std::ranges::any_of(found->second,
                                 [&](const InitializerUse& use) { return use.kind == kind; });
    };
    std::vector<std::pair<std::string, std::string>> transposed;  // pairs of copy and table
    for (const TensorProto& copy : graph.initializer()) {
      if (copy.dims_size() != 2 || absl::StrContains(copy.name(), '.') ||
          !has_use(copy.name(), UseKind::kWeight) || Matches(model_.untie(), copy.name())) {
        continue;
      }
      for (const TensorProto& table : graph.initializer()) {
        if (table.dims_size() != 2 || table.dims(0) != copy.dims(1) ||
            table.dims(1) != copy.dims(0) || !has_use(table.name(), UseKind::kTable)) {
          continue;
        }
        ASSIGN_OR_RETURN(const bool equal, IsTransposed(table, copy));
        if (!equal) continue;
        transposed.emplace_back(copy.name(), table.name());
        break;
      }
    }
    for (const auto& [copy, table] : transposed) ReadTransposed(graph, copy, table);
    return absl::OkStatus();
  }

  // Joins equal weights that `model.tie` names. Other equal weights without a module's name may be
  // one weight or copies: they are reported as doubts, so that the user decides.
  absl::Status JoinEqual(GraphProto& graph) {
    const InitializerUses uses = FindInitializerUses(graph);
    std::vector<std::pair<const TensorProto*, std::vector<float>>> weights;
    absl::flat_hash_map<std::string, std::string> joined;  // maps a name to the first equal weight
    for (const TensorProto& tensor : graph.initializer()) {
      const bool tied = Matches(model_.tie(), tensor.name());
      const auto own = uses.find(tensor.name());
      if (own == uses.end() || tensor.dims_size() < 2 ||
          !(tied || (!absl::StrContains(tensor.name(), '.') && IsMatrix(own->second.front())))) {
        continue;
      }
      ASSIGN_OR_RETURN(std::vector<float> values, file_.Floats(tensor));
      if (IsPlain(values)) continue;
      const auto equal = std::ranges::find_if(weights, [&](const auto& weight) {
        return std::ranges::equal(weight.first->dims(), tensor.dims()) && weight.second == values;
      });
      if (equal == weights.end()) {
        weights.emplace_back(&tensor, std::move(values));
      } else if (tied && Matches(model_.tie(), equal->first->name())) {
        joined[tensor.name()] = equal->first->name();
      } else if (!Matches(model_.untie(), tensor.name())) {
        sharing_.doubts.push_back(absl::StrCat("'", tensor.name(), "' equals '",
                                               equal->first->name(), "' (they train apart)"));
      }
    }
    for (NodeProto& node : *graph.mutable_node()) {
      for (std::string& input : *node.mutable_input()) {
        if (const auto one = joined.find(input); one != joined.end()) input = one->second;
      }
    }
    for (const auto& [name, first] : joined) {
      sharing_.notes.push_back(absl::StrCat("'", name, "' and '", first, "' are one tensor"));
    }
    return absl::OkStatus();
  }

  static bool IsPlain(const std::vector<float>& values) {
    return std::ranges::all_of(values, [&](float value) { return value == values[0]; });
  }

  absl::StatusOr<bool> IsTransposed(const TensorProto& table, const TensorProto& copy) const {
    ASSIGN_OR_RETURN(const std::vector<float> a, file_.Floats(table));
    ASSIGN_OR_RETURN(const std::vector<float> b, file_.Floats(copy));
    const int64_t rows = table.dims(0), columns = table.dims(1);
    bool differs = false;  // whether elements differ from each other
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        if (a[row * columns + column] != b[column * rows + row]) return false;
        differs = differs || a[row * columns + column] != a[0];
      }
    }
    return differs;
  }

  void ReadTransposed(GraphProto& graph, const std::string& copy, const std::string& table) {
    google::protobuf::RepeatedPtrField<TensorProto> kept;
    for (TensorProto& tensor : *graph.mutable_initializer()) {
      if (tensor.name() != copy) kept.Add()->Swap(&tensor);
    }
    graph.mutable_initializer()->Swap(&kept);
    // IR versions before 4 list initialisers as inputs too.
    google::protobuf::RepeatedPtrField<onnx::ValueInfoProto> inputs;
    for (onnx::ValueInfoProto& input : *graph.mutable_input()) {
      if (input.name() != copy) inputs.Add()->Swap(&input);
    }
    graph.mutable_input()->Swap(&inputs);
    google::protobuf::RepeatedPtrField<NodeProto> nodes;
    NodeProto& transpose = *nodes.Add();
    transpose.set_op_type("Transpose");
    transpose.set_name(absl::StrCat(copy, "/transposed"));
    transpose.add_input(table);
    transpose.add_output(copy);
    onnx::AttributeProto& permutation = *transpose.add_attribute();
    permutation.set_name("perm");
    permutation.set_type(onnx::AttributeProto::INTS);
    permutation.add_ints(1);
    permutation.add_ints(0);
    for (NodeProto& node : *graph.mutable_node()) nodes.Add()->Swap(&node);
    graph.mutable_node()->Swap(&nodes);
    sharing_.notes.push_back(absl::StrCat("'", copy, "' is '", table, "' transposed: one tensor"));
  }

  void NoteOneTensor(const TensorProto& tensor, const std::vector<Edge>& edges) {
    std::set<const NodeProto*> places, products;
    for (const Edge& edge : edges) {
      for (const InitializerUse* use : edge.uses) {
        places.insert(use->node);
        if (use->kind == UseKind::kWeight) products.insert(use->node);
      }
    }
    if (places.size() < 2) return;  // the paths join again before one place
    const std::string where = absl::StrCat(places.size(), " places: ", Shown(edges));
    if (products.size() > 1) {
      sharing_.doubts.push_back(absl::StrCat("'", tensor.name(), "' (", where, ")"));
    } else {
      sharing_.notes.push_back(absl::StrCat("'", tensor.name(), "' is one tensor in ", where));
    }
  }

  void Separate(const TensorProto& tensor, const std::vector<Edge>& edges,
                const std::vector<std::vector<size_t>>& groups,
                std::vector<std::pair<std::string, const TensorProto*>>& copies) {
    if (groups.size() < 2) return;
    for (size_t g = 1; g < groups.size(); ++g) {
      const Edge& first = edges[groups[g][0]];
      // Uses the exporter's name for the copy, and removes the Identity that made it.
      const bool renamed = groups[g].size() == 1 && first.node->op_type() == "Identity";
      std::string name = renamed ? first.node->output(0) : Unused(tensor.name());
      if (renamed) {
        replaced_.insert(first.node);
      } else {
        for (size_t e : groups[g]) edges[e].node->set_input(edges[e].input, name);
      }
      copies.emplace_back(std::move(name), &tensor);
    }
    sharing_.notes.push_back(absl::StrCat("'", tensor.name(), "' was written once for ",
                                          groups.size(),
                                          " equal tensors, which train apart: ", Shown(edges)));
  }

  std::string Unused(const std::string& name) {
    for (int number = 2;; ++number) {
      std::string candidate = absl::StrCat(name, ".", number);
      if (names_.insert(candidate).second) return candidate;
    }
  }

  void RemoveReplacedIdentities(GraphProto& graph) {
    google::protobuf::RepeatedPtrField<NodeProto> kept;
    for (NodeProto& node : *graph.mutable_node()) {
      if (!replaced_.contains(&node)) kept.Add()->Swap(&node);
    }
    graph.mutable_node()->Swap(&kept);
  }

  const v1::OnnxModel& model_;
  OnnxFile& file_;
  absl::flat_hash_set<std::string> names_;
  absl::flat_hash_set<const NodeProto*> replaced_;
  Sharing sharing_;
};

}  // namespace

absl::StatusOr<Sharing> SeparateInitializers(const v1::OnnxModel& model, OnnxFile& file) {
  return Separator(model, file).Run();
}

}  // namespace muster
