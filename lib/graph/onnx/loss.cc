// The part of OnnxImporter that adds the loss after the file's computation.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/graph/onnx/importer.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using onnx::NodeProto;

absl::Status InvalidLoss(absl::string_view what) {
  return WithReason(absl::InvalidArgumentError(what), "MODEL_INVALID");
}

}  // namespace

absl::StatusOr<std::string> OnnxImporter::LossTensor(const v1::OnnxModel& model) const {
  std::vector<std::string> outputs;
  for (const onnx::ValueInfoProto& output : file_.graph().output()) {
    outputs.push_back(output.name());
  }
  std::string name = model.logits();
  if (name.empty() && outputs.size() == 1) name = outputs.front();
  if (std::ranges::count(outputs, name) == 0) {
    return InvalidLoss(
        absl::StrCat("logits: ", name.empty() ? "must name" : absl::StrCat("'", name, "' is not"),
                     " one of the file's outputs: ", absl::StrJoin(outputs, ", ")));
  }
  if (const auto alias = alias_.find(name); alias != alias_.end()) return alias->second;
  if (!types_[0].contains(name))
    return InvalidLoss(absl::StrCat("output '", name, "' is a constant"));
  return name;
}

// Makes output `loss` of the file the loss of the graph. The file computes the mean over the
// samples of a run; this function makes it a share of the global batch's mean.
absl::Status OnnxImporter::AddOwnLoss(const std::string& loss) {
  if (types_[0].at(loss).shape.size() > 1 || types_[0].at(loss).elements() != 1 ||
      types_[0].at(loss).dtype != v1::DTYPE_F32) {
    return InvalidLoss(
        absl::StrCat("loss: output '", loss, "' is ", types_[0].at(loss).ToString(),
                     ": with \"output\" it must be one number, the mean over the batch"));
  }
  NodeProto node;
  node.set_name("loss");
  node.add_output(loss);
  std::string scalar = loss;
  if (!types_[0].at(loss).shape.empty()) {
    ASSIGN_OR_RETURN(scalar, Reshaped(node, loss, {}));
  }
  graph_.set_loss(Unique("loss"));
  return Add(node, "BatchShare", {scalar}, {graph_.loss()});
}

absl::Status OnnxImporter::AddLabels(const std::string& labels, bool of_classes,
                                     const std::vector<int64_t>& logits) {
  const auto existing = std::ranges::find_if(
      graph_.inputs(), [&](const v1::GraphInput& input) { return input.name() == labels; });
  if (existing != graph_.inputs().end()) return absl::OkStatus();
  if (names_.contains(labels))
    return InvalidLoss(absl::StrCat("labels: '", labels, "' is a tensor"));
  v1::GraphInput& input = *graph_.add_inputs();
  input.set_name(labels);
  input.set_dtype(of_classes ? v1::DTYPE_I32 : v1::DTYPE_F32);
  input.add_shape(-1);
  for (size_t d = 1; d + (of_classes ? 1 : 0) < logits.size(); ++d) input.add_shape(logits[d]);
  return absl::OkStatus();
}

absl::Status OnnxImporter::AddLoss(const v1::OnnxModel& model) {
  ASSIGN_OR_RETURN(const std::string logits, LossTensor(model));
  if (model.loss() == "output") return AddOwnLoss(logits);
  const std::vector<int64_t> shape = types_[0].at(logits).shape;
  const bool of_classes = model.loss().empty() || model.loss() == "softmax_cross_entropy";
  const bool sigmoid = model.loss() == "sigmoid_cross_entropy";
  if (!of_classes && !sigmoid && model.loss() != "mean_squared_error") {
    return InvalidLoss(absl::StrCat("loss: '", model.loss(),
                                    "' is unknown; there are softmax_cross_entropy, "
                                    "sigmoid_cross_entropy, mean_squared_error and output"));
  }
  ASSIGN_OR_RETURN(const std::vector<Extent> extents, ShapeOf(logits));
  if (extents.empty() || extents[0] != Extent{1, true} || (of_classes && shape.size() < 2)) {
    return InvalidLoss(absl::StrCat("output '", logits, "' is ", types_[0].at(logits).ToString(),
                                    " for a batch of 2: a loss needs the batch first",
                                    of_classes ? " and the classes last" : ""));
  }
  const std::string labels = model.labels().empty() ? "target" : model.labels();
  RETURN_IF_ERROR(AddLabels(labels, of_classes, shape));
  const auto add = [&](absl::string_view op, std::vector<std::string> node_outputs) {
    v1::Node& node = *graph_.add_nodes();
    node.set_name(node_outputs.front());
    node.set_op(std::string(op));
    node.add_inputs(logits);
    node.add_inputs(labels);
    node.mutable_outputs()->Add(node_outputs.begin(), node_outputs.end());
  };
  graph_.set_loss(Unique("loss"));
  if (of_classes) {
    add("SoftmaxCrossEntropy", {graph_.loss(), Unique("loss/lse")});
    graph_.set_logits(logits);
    if (shape.size() == 2) {
      graph_.set_correct(Unique("correct"));
      add("CorrectCount", {graph_.correct()});
    }
  } else {
    add(sigmoid ? "SigmoidCrossEntropy" : "MeanSquaredError", {graph_.loss()});
  }
  return absl::OkStatus();
}

}  // namespace muster
