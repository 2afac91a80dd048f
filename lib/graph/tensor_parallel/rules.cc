#include "lib/graph/tensor_parallel/rules.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/graph/attributes.h"
#include "lib/graph/dependence.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using Kind = TensorPlacement::Kind;

template <typename... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

class Checker {
 public:
  Checker(const v1::Graph& graph, const TensorTypes& types, const TensorParallel& group)
      : graph_(graph),
        types_(types),
        group_(group),
        differentiable_(DifferentiableInTrained(graph, types)) {}

  absl::StatusOr<Placements> Run(const TensorSplits& parameters) && {
    for (const v1::GraphInput& input : graph_.inputs()) placements_[input.name()] = {};
    for (const v1::Parameter& parameter : graph_.parameters()) {
      const auto divided = parameters.find(parameter.name());
      if (divided == parameters.end()) {
        placements_[parameter.name()] = {};
      } else {
        RETURN_IF_ERROR(PlaceShard(parameter.name(), divided->second.dim, divided->second.split));
      }
    }
    for (const v1::Node& node : graph_.nodes()) {
      RETURN_IF_ERROR(Annotate(Check(node), absl::StrCat("node '", node.name(), "' (", node.op(),
                                                         ") of rank ", group_.rank)));
    }
    for (const std::string* role : {&graph_.loss(), &graph_.logits(), &graph_.correct()}) {
      if (!role->empty() && At(*role).kind != Kind::kReplicated) {
        return Wrong("output '", *role, "' is ", At(*role).ToString());
      }
    }
    return std::move(placements_);
  }

 private:
  const TensorPlacement& At(const std::string& tensor) const { return placements_.at(tensor); }
  const std::vector<int64_t>& Shape(const std::string& tensor) const {
    return types_.at(tensor).shape;
  }
  int LastDim(const std::string& tensor) const {
    return static_cast<int>(Shape(tensor).size()) - 1;
  }

  absl::Status PlaceShard(const std::string& tensor, int dim, const DimensionSplit& split) {
    const int64_t size = Shape(tensor)[dim], expected = SizeOf(split, group_);
    if (size != expected) {
      return Wrong("dimension ", dim, " of '", tensor, "' has ", size, " elements instead of ",
                   expected);
    }
    placements_[tensor] = {.kind = Kind::kShard, .dim = dim, .split = split};
    return absl::OkStatus();
  }
  absl::Status PlaceLast(const std::string& tensor, const DimensionSplit& split) {
    return PlaceShard(tensor, LastDim(tensor), split);
  }

  bool IsShard(const std::string& tensor) const { return At(tensor).kind == Kind::kShard; }

  // Returns an error unless the tensor is whole and its gradient is not lost: ranks that compute
  // with parts compute only parts of it.
  absl::Status CheckShared(const std::string& tensor) const {
    const TensorPlacement& placement = At(tensor);
    if (placement.kind == Kind::kShared) return absl::OkStatus();
    if (placement.kind != Kind::kReplicated) {
      return Wrong("'", tensor, "' is ", placement.ToString(), ", must be whole");
    }
    if (!differentiable_.contains(tensor)) return absl::OkStatus();
    return Wrong("'", tensor, "' meets a part without a GradientAllReduce");
  }

  // Returns the split of a tensor that must be divided along its last dimension.
  absl::StatusOr<DimensionSplit> LastSplit(const std::string& tensor) const {
    const TensorPlacement& placement = At(tensor);
    if (placement.kind == Kind::kShard && placement.dim == LastDim(tensor)) return placement.split;
    return Wrong("'", tensor, "' is ", placement.ToString(),
                 ", must be a part of the last dimension");
  }

  absl::Status CheckBlocks(const std::string& tensor, const DimensionSplit& split,
                           int64_t blocks) const {
    if (split.blocks == blocks) return absl::OkStatus();
    return Wrong("'", tensor, "' has ", split.blocks, " blocks, must have ", blocks);
  }

  absl::Status CheckPart(const v1::Node& node, const DimensionSplit& split) const {
    const RankRange own = ElementsOf(split, group_);
    const DimensionPart part = PartAttributes(node, own.size);
    if (part.first == own.first && part.whole == split.size) return absl::OkStatus();
    return Wrong("takes its part as from ", part.first, " of ", part.whole, ", but it is from ",
                 own.first, " of ", split.size);
  }

  absl::Status CheckInteger(const v1::Node& node, absl::string_view attribute,
                            int64_t expected) const {
    const int64_t value = IntegerAttribute(node, attribute);
    if (value == expected) return absl::OkStatus();
    return Wrong("attribute '", attribute, "' is ", value, ", must be ", expected);
  }

  absl::Status Check(const v1::Node& node) {
    const std::string& op = node.op();
    const auto has = [&](Kind kind) {
      return std::ranges::any_of(node.inputs(),
                                 [&](const std::string& x) { return At(x).kind == kind; });
    };
    if (op == "AllReduce") return CheckAllReduce(node);
    if (op == "GradientAllReduce") return CheckGradientAllReduce(node);
    for (const std::string& input : node.inputs()) {
      if (At(input).kind == Kind::kPartial) {
        return Wrong("reads '", input, "', a term of a sum, before its AllReduce");
      }
    }
    if (!has(Kind::kShard)) return CheckWhole(node);
    if (const absl::optional<LinearWeight> weight = LinearWeightOf(node, types_);
        weight && IsShard(node.inputs(1))) {
      return CheckLinear(node, *weight);
    }
    if (op == "Embedding") return CheckEmbedding(node);
    if (IsPointwise(op) || KeepsRows(node, types_)) return CheckRows(node);
    if (IsPointwiseOfTwo(op)) return CheckPair(node);
    if (op == "SelfAttention") return CheckSelfAttention(node);
    if (op == "Attention") return CheckAttention(node);
    if (op == "Split") return CheckSplit(node);
    if (op == "SoftmaxCrossEntropy") return CheckLoss(node);
    return Wrong("takes only whole tensors");
  }

  absl::Status CheckAllReduce(const v1::Node& node) {
    const TensorPlacement& x = At(node.inputs(0));
    if (x.kind != Kind::kPartial) return Wrong("sums '", node.inputs(0), "', ", x.ToString());
    placements_[node.outputs(0)] = {};
    return absl::OkStatus();
  }

  absl::Status CheckGradientAllReduce(const v1::Node& node) {
    const TensorPlacement& x = At(node.inputs(0));
    if (x.kind != Kind::kReplicated) return Wrong("takes '", node.inputs(0), "', ", x.ToString());
    placements_[node.outputs(0)] = {.kind = Kind::kShared};
    return absl::OkStatus();
  }

  // A node that all ranks compute alike. A shared input would get its whole gradient on every rank,
  // and the sum over the ranks would be too large.
  absl::Status CheckWhole(const v1::Node& node) {
    for (const std::string& input : node.inputs()) {
      if (At(input).kind == Kind::kShared) {
        return Wrong("reads '", input,
                     "' without a part of another tensor, so its gradient would "
                     "count ",
                     group_.degree, " times");
      }
    }
    if (HasAttribute(node, "whole")) return Wrong("has a part of a tensor that is whole");
    for (const std::string& output : node.outputs()) placements_[output] = {};
    return absl::OkStatus();
  }

  absl::Status CheckLinear(const v1::Node& node, const LinearWeight& weight) {
    const std::string &x = node.inputs(0), &y = node.outputs(0);
    const TensorPlacement& w = At(node.inputs(1));
    if (w.dim == weight.outputs_dim) {
      RETURN_IF_ERROR(CheckShared(x));
      if (node.inputs_size() > 2 &&
          At(node.inputs(2)) != TensorPlacement{Kind::kShard, 0, w.split}) {
        return Wrong("the bias is ", At(node.inputs(2)).ToString(), ", the weight ", w.ToString());
      }
      return PlaceLast(y, w.split);
    }
    ASSIGN_OR_RETURN(const DimensionSplit split, LastSplit(x));
    if (split != w.split) {
      return Wrong("x is ", At(x).ToString(), " but the weight is ", w.ToString());
    }
    if (node.inputs_size() > 2) return Wrong("would add its bias once for each rank");
    placements_[y] = {.kind = Kind::kPartial};
    return absl::OkStatus();
  }

  absl::Status CheckEmbedding(const v1::Node& node) {
    const TensorPlacement &ids = At(node.inputs(0)), &table = At(node.inputs(1));
    if (ids.kind != Kind::kReplicated) return Wrong("the ids are ", ids.ToString());
    if (table.dim != 0) return Wrong("the table is ", table.ToString());
    RETURN_IF_ERROR(CheckBlocks(node.inputs(1), table.split, 1));
    RETURN_IF_ERROR(CheckPart(node, table.split));
    placements_[node.outputs(0)] = {.kind = Kind::kPartial};
    return absl::OkStatus();
  }

  absl::Status CheckRows(const v1::Node& node) {
    ASSIGN_OR_RETURN(const DimensionSplit split, LastSplit(node.inputs(0)));
    if (node.op() == "Dropout") {
      RETURN_IF_ERROR(CheckBlocks(node.inputs(0), split, 1));
      RETURN_IF_ERROR(CheckPart(node, split));
    }
    return PlaceLast(node.outputs(0), split);
  }

  absl::Status CheckPair(const v1::Node& node) {
    absl::optional<DimensionSplit> all;
    for (const std::string& input : node.inputs()) {
      if (!IsShard(input)) {
        RETURN_IF_ERROR(CheckShared(input));
        if (!Shape(input).empty() && Shape(input).back() != 1) {
          return Wrong("'", input, "' is whole and its last dimension does not broadcast");
        }
        continue;
      }
      ASSIGN_OR_RETURN(const DimensionSplit split, LastSplit(input));
      if (all && split != *all) return Wrong("the operands are divided in different ways");
      all = split;
    }
    return PlaceLast(node.outputs(0), *all);
  }

  absl::Status CheckMask(const v1::Node& node, int mask) const {
    if (node.inputs_size() <= mask) return absl::OkStatus();
    if (Shape(node.inputs(mask))[1] != 1) return Wrong("the mask has a dimension of heads");
    return CheckShared(node.inputs(mask));
  }

  absl::Status PlaceAttention(const v1::Node& node, const DimensionSplit& y) {
    RETURN_IF_ERROR(CheckInteger(node, "heads", UnitsOf(y.units, group_).size));
    RETURN_IF_ERROR(PlaceLast(node.outputs(0), y));
    return PlaceShard(node.outputs(1), 1, {.size = y.units, .units = y.units});
  }

  absl::Status CheckSelfAttention(const v1::Node& node) {
    ASSIGN_OR_RETURN(const DimensionSplit qkv, LastSplit(node.inputs(0)));
    RETURN_IF_ERROR(CheckBlocks(node.inputs(0), qkv, 3));
    RETURN_IF_ERROR(CheckMask(node, 1));
    return PlaceAttention(node, {.size = qkv.size / 3, .units = qkv.units});
  }

  absl::Status CheckAttention(const v1::Node& node) {
    DimensionSplit split;
    for (int x = 0; x < 3; ++x) {
      const int64_t units = split.units;
      ASSIGN_OR_RETURN(split, LastSplit(node.inputs(x)));
      RETURN_IF_ERROR(CheckBlocks(node.inputs(x), split, 1));
      if (x > 0 && split.units != units) return Wrong("q, k and v have different heads");
    }
    RETURN_IF_ERROR(CheckMask(node, 3));
    return PlaceAttention(node, split);
  }

  absl::Status CheckSplit(const v1::Node& node) {
    ASSIGN_OR_RETURN(DimensionSplit split, LastSplit(node.inputs(0)));
    const int rank = LastDim(node.inputs(0)) + 1;
    if (AxisAttribute(node, rank) != rank - 1) return Wrong("cuts another dimension");
    RETURN_IF_ERROR(CheckBlocks(node.inputs(0), split, node.outputs_size()));
    split = {.size = split.size / split.blocks, .units = split.units};
    for (const std::string& output : node.outputs()) RETURN_IF_ERROR(PlaceLast(output, split));
    return absl::OkStatus();
  }

  absl::Status CheckLoss(const v1::Node& node) {
    ASSIGN_OR_RETURN(const DimensionSplit classes, LastSplit(node.inputs(0)));
    RETURN_IF_ERROR(CheckBlocks(node.inputs(0), classes, 1));
    RETURN_IF_ERROR(CheckPart(node, classes));
    RETURN_IF_ERROR(CheckInteger(node, "ranks", group_.degree));
    if (At(node.inputs(1)).kind != Kind::kReplicated) return Wrong("the target is not whole");
    for (const std::string& output : node.outputs()) placements_[output] = {};
    return absl::OkStatus();
  }

  const v1::Graph& graph_;
  const TensorTypes& types_;
  const TensorParallel group_;
  const absl::flat_hash_set<std::string> differentiable_;
  Placements placements_;
};

}  // namespace

absl::StatusOr<Placements> CheckPlacements(const v1::Graph& graph, const TensorTypes& types,
                                           const TensorSplits& parameters,
                                           const TensorParallel& group) {
  return Checker(graph, types, group).Run(parameters);
}

}  // namespace muster
