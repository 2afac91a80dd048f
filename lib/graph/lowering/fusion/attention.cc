#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "lib/graph/attributes.h"
#include "lib/graph/dependence.h"
#include "lib/graph/lowering/fusion/fusion.h"
#include "lib/graph/lowering/fusion/graph_edit.h"

namespace muster {
namespace {

using Permutation = std::vector<int64_t>;

// Matches the pattern from the softmax: backwards to q and k, then forwards to y, and backwards
// from the second product to v. Records the nodes on the way.
class Attention {
 public:
  Attention(const TensorTypes& types, const absl::flat_hash_set<std::string>& dependent,
            const GraphEdit& edit)
      : types_(types), dependent_(dependent), edit_(edit) {}

  bool Match(int softmax) {
    members_ = {softmax};
    return MatchScores(edit_.node(softmax).inputs(0)) &&
           MatchValues(edit_.node(softmax).outputs(0)) && IsOfOneBatch();
  }

  std::vector<int> members() const {
    std::vector<int> members = members_;
    std::ranges::sort(members);
    return members;
  }

  v1::Node Fused() const {
    v1::Node node;
    node.set_name(edit_.node(members_.front()).name());
    node.set_op("Attention");
    for (const std::string* input : {&q_, &k_, &v_, &mask_}) {
      if (!input->empty()) node.add_inputs(*input);
    }
    node.add_outputs(y_);
    // The second output takes the name of the softmax's output, which the fusion removes.
    node.add_outputs(edit_.node(members_.front()).outputs(0));
    (*node.mutable_attributes())["heads"].set_i(heads_);
    (*node.mutable_attributes())["scale"].set_f(scale_);
    return node;
  }

 private:
  const std::vector<int64_t>& Shape(const std::string& tensor) const {
    return types_.at(tensor).shape;
  }

  // Steps to the maker of a tensor that only the pattern reads.
  const v1::Node* Enter(const std::string& tensor, absl::string_view op) {
    const int maker = edit_.Maker(tensor);
    if (!edit_.Is(maker, op) || edit_.OnlyReader(tensor) < 0) return nullptr;
    members_.push_back(maker);
    return &edit_.node(maker);
  }

  const v1::Node* Leave(const std::string& tensor, absl::string_view op) {
    const int reader = edit_.OnlyReader(tensor);
    if (!edit_.Is(reader, op)) return nullptr;
    members_.push_back(reader);
    return &edit_.node(reader);
  }

  absl::optional<double> ConstantScalar(const std::string& tensor) const {
    const int maker = edit_.Maker(tensor);
    if (!edit_.Is(maker, "Constant") || types_.at(tensor).elements() != 1) return absl::nullopt;
    const v1::Node& node = edit_.node(maker);
    if (HasAttribute(node, "value")) return NumberAttribute(node, "value");
    if (HasAttribute(node, "values")) return NumbersAttribute(node, "values").front();
    return absl::nullopt;
  }

  // Steps over a factor or divisor, which becomes part of the scale. Returns the scaled tensor.
  std::string Unscaled(const std::string& tensor) {
    const int maker = edit_.Maker(tensor);
    for (const bool divides : {false, true}) {
      if (!edit_.Is(maker, divides ? "Div" : "Mul")) continue;
      const v1::Node& node = edit_.node(maker);
      for (int constant : {1, 0}) {
        const absl::optional<double> value = ConstantScalar(node.inputs(constant));
        if (!value || (divides && constant == 0) || edit_.OnlyReader(tensor) < 0 ||
            Shape(node.inputs(1 - constant)) != Shape(tensor)) {
          continue;
        }
        scale_ *= divides ? 1 / *value : *value;
        members_.push_back(maker);
        return node.inputs(1 - constant);
      }
    }
    return tensor;
  }

  // scores = scale q kᵀ [+ mask]
  bool MatchScores(std::string scores) {
    if (edit_.OnlyReader(scores) < 0) return false;
    const std::vector<int64_t> shape = Shape(scores);
    if (shape.size() != 4) return false;
    if (const int add = edit_.Maker(scores); edit_.Is(add, "Add")) {
      const v1::Node& node = edit_.node(add);
      const bool mask_first = dependent_.contains(node.inputs(1));
      mask_ = node.inputs(mask_first ? 0 : 1);
      scores = node.inputs(mask_first ? 1 : 0);
      if (!IsMask(shape) || Shape(scores) != shape || edit_.OnlyReader(scores) < 0) return false;
      members_.push_back(add);
    }
    const v1::Node* product = Enter(Unscaled(scores), "MatMul");
    if (product == nullptr || IntegerAttribute(*product, "transpose_a") != 0) return false;
    heads_ = shape[1];
    const bool transposes = IntegerAttribute(*product, "transpose_b") != 0;
    const Permutation as_keys = transposes ? Permutation{0, 2, 1, 3} : Permutation{0, 2, 3, 1};
    return MatchHeads(Unscaled(product->inputs(0)), {0, 2, 1, 3}, q_) &&
           MatchHeads(Unscaled(product->inputs(1)), as_keys, k_);
  }

  // Returns whether mask_ is [B or 1, H or 1, T or 1, S] and needs no gradient: Attention has no
  // gradient for its mask.
  bool IsMask(absl::Span<const int64_t> scores) const {
    const std::vector<int64_t>& mask = Shape(mask_);
    if (dependent_.contains(mask_) || mask.size() != 4 || mask[3] != scores[3]) return false;
    for (int i = 0; i < 3; ++i) {
      if (mask[i] != 1 && mask[i] != scores[i]) return false;
    }
    return true;
  }

  // Matches heads that Reshape and Transpose split off a [B, T, C].
  bool MatchHeads(const std::string& tensor, const Permutation& permutation, std::string& whole) {
    const v1::Node* transpose = Enter(tensor, "Transpose");
    if (transpose == nullptr || IntegersAttribute(*transpose, "permutation") != permutation) {
      return false;
    }
    const v1::Node* reshape = Enter(transpose->inputs(0), "Reshape");
    if (reshape == nullptr) return false;
    whole = reshape->inputs(0);
    const std::vector<int64_t>& x = Shape(whole);
    const std::vector<int64_t>& split = Shape(reshape->outputs(0));
    return x.size() == 3 && split.size() == 4 && split[0] == x[0] && split[1] == x[1] &&
           split[2] == heads_;
  }

  // Matches y = probabilities v, with the heads joined again.
  bool MatchValues(const std::string& probabilities) {
    const v1::Node* product = Leave(probabilities, "MatMul");
    if (product == nullptr || product->inputs(0) != probabilities ||
        IntegerAttribute(*product, "transpose_a") != 0 ||
        IntegerAttribute(*product, "transpose_b") != 0 ||
        !MatchHeads(product->inputs(1), {0, 2, 1, 3}, v_)) {
      return false;
    }
    const v1::Node* transpose = Leave(product->outputs(0), "Transpose");
    if (transpose == nullptr ||
        IntegersAttribute(*transpose, "permutation") != Permutation{0, 2, 1, 3}) {
      return false;
    }
    const v1::Node* reshape = Leave(transpose->outputs(0), "Reshape");
    if (reshape == nullptr) return false;
    y_ = reshape->outputs(0);
    const std::vector<int64_t>& split = Shape(transpose->outputs(0));
    return Shape(y_) == std::vector<int64_t>{split[0], split[1], split[2] * split[3]};
  }

  // Returns whether q, k and v have the same batch. A query or memory that all samples share has a
  // batch of 1. MatMul broadcasts it, but Attention does not.
  bool IsOfOneBatch() const { return Shape(q_)[0] == Shape(k_)[0] && Shape(k_)[0] == Shape(v_)[0]; }

  const TensorTypes& types_;
  const absl::flat_hash_set<std::string>& dependent_;
  const GraphEdit& edit_;
  std::vector<int> members_;
  std::string q_, k_, v_, mask_, y_;
  int64_t heads_ = 0;
  double scale_ = 1;
};

}  // namespace

void FuseAttention(const TensorTypes& types, v1::Graph& graph) {
  const absl::flat_hash_set<std::string> dependent = DependentOnTrained(graph, types);
  GraphEdit edit(graph);
  for (int i = 0; i < edit.size(); ++i) {
    if (!edit.Is(i, "Softmax")) continue;
    Attention attention(types, dependent, edit);
    if (attention.Match(i)) edit.Replace(attention.members(), attention.Fused());
  }
}

}  // namespace muster
