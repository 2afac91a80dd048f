#include <numeric>
#include <string>
#include <vector>

#include "lib/graph/onnx/converters/converters.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using onnx::NodeProto;

// Converts a loss of classes, from scores or from log-probabilities, with the classes in the
// dimension after the batch. It is computed over the samples of a run; the importer makes the
// result a share of the global batch.
absl::Status ClassLoss(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(std::string labels, im.Tensor(node, 1));
  ASSIGN_OR_RETURN(const int64_t rank, im.Rank(node, 0));
  if (rank < 2) return NodeFault(node, "needs classes");
  std::vector<int64_t> last(rank);
  std::iota(last.begin(), last.end(), 0);
  last.erase(last.begin() + 1);
  last.push_back(1);
  ASSIGN_OR_RETURN(x, im.Transposed(node, x, last));
  if (node.op_type() == "SoftmaxCrossEntropyLoss") {
    ASSIGN_OR_RETURN(x, im.Make(node, "LogSoftmax", {x}));
  }
  // The weight of each label: 0 if it is ignored.
  std::string weight;
  if (FindAttribute(node, "ignore_index") != nullptr) {
    const auto ignored = static_cast<double>(Integer(node, "ignore_index", -1));
    ASSIGN_OR_RETURN(const std::string constant, im.Scalar(node, ignored, false));
    ASSIGN_OR_RETURN(const std::string is_ignored, im.Make(node, "Equal", {labels, constant}));
    ASSIGN_OR_RETURN(const std::string zero, im.Scalar(node, 0, false));
    ASSIGN_OR_RETURN(labels, im.Make(node, "Where", {is_ignored, zero, labels}));
    ASSIGN_OR_RETURN(const std::string counts, im.Make(node, "Equal", {is_ignored, zero}));
    ASSIGN_OR_RETURN(weight, im.Make(node, "Cast", {counts}, {{"to", WordValue("f32")}}));
  }
  if (HasInput(node, 2)) {
    ASSIGN_OR_RETURN(const std::string table, im.Tensor(node, 2));
    ASSIGN_OR_RETURN(const std::string own, im.Make(node, "Gather", {table, labels}));
    if (weight.empty()) {
      weight = own;
    } else {
      ASSIGN_OR_RETURN(weight, im.Make(node, "Mul", {weight, own}));
    }
  }
  ASSIGN_OR_RETURN(const std::string column,
                   im.Make(node, "Unsqueeze", {labels}, {{"axes", IntegersValue({-1})}}));
  ASSIGN_OR_RETURN(const std::string picked, im.Make(node, "GatherElements", {x, column},
                                                     {{"axis", IntegerValue(rank - 1)}}));
  ASSIGN_OR_RETURN(const std::string log,
                   im.Make(node, "Squeeze", {picked}, {{"axes", IntegersValue({-1})}}));
  ASSIGN_OR_RETURN(std::string loss, im.Make(node, "Neg", {log}));
  if (!weight.empty()) {
    ASSIGN_OR_RETURN(loss, im.Make(node, "Mul", {loss, weight}));
  }
  const std::string reduction = Word(node, "reduction", "mean");
  if (reduction != "none") {
    std::vector<int64_t> axes(rank - 1);
    std::iota(axes.begin(), axes.end(), 0);
    const Attributes all = {{"axes", IntegersValue(axes)}, {"keep", IntegerValue(0)}};
    const bool is_mean = reduction == "mean";
    ASSIGN_OR_RETURN(loss, im.Make(node, is_mean ? "ReduceMean" : "ReduceSum", {loss}, all));
    if (is_mean && !weight.empty()) {
      // Divides means over all targets, not sums: the sums over a batch of tokens are infinite in
      // f16. If no target counts, as in a micro-batch of padding, the loss is 0.
      ASSIGN_OR_RETURN(std::string total, im.Make(node, "ReduceMean", {weight}, all));
      ASSIGN_OR_RETURN(const std::string nothing, im.Scalar(node, 0, true));
      ASSIGN_OR_RETURN(const std::string one, im.Scalar(node, 1, true));
      ASSIGN_OR_RETURN(const std::string is_nothing, im.Make(node, "Equal", {total, nothing}));
      ASSIGN_OR_RETURN(total, im.Make(node, "Where", {is_nothing, one, total}));
      ASSIGN_OR_RETURN(loss, im.Make(node, "Div", {loss, total}));
    }
  }
  im.Alias(node, 0, loss);
  return absl::OkStatus();
}

}  // namespace

void AddLossConverters(ConverterTable& table) {
  table["NegativeLogLikelihoodLoss"] = table["SoftmaxCrossEntropyLoss"] = ClassLoss;
}

}  // namespace muster
