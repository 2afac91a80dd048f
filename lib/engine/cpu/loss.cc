// Losses: each gives this run's share of the global batch's mean.
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "kernels/mean_squared_error.h"
#include "kernels/sigmoid_cross_entropy.h"
#include "kernels/softmax_cross_entropy.h"
#include "lib/engine/cpu/binding.h"
#include "lib/graph/attributes.h"
#include "lib/status/status.h"

namespace muster {
namespace {

double WeightOf(const CpuNode& n) { return NumberAttribute(*n.node, "weight"); }

// --- Losses of class labels ---------------------------------------------------------------------

// Inputs: logits, target.
kernels::CrossEntropyShape ClassesOf(const CpuNode& n) {
  kernels::CrossEntropyShape shape{.rows = n.rows(0), .classes = n.columns(0)};
  if (const absl::optional<int64_t> ignored = IgnoreIndex(*n.node)) {
    shape.ignore_index = static_cast<int32_t>(*ignored);
  }
  return shape;
}

absl::Status CheckTargets(const std::string& node, const int32_t* target,
                          const kernels::CrossEntropyShape& shape) {
  const int64_t bad = kernels::FirstBadTarget(target, shape);
  if (bad < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("node '", node, "': id ", target[bad],
                                                 " at position ", bad, " is outside [0, ",
                                                 shape.all_classes(), ")"));
}

// The part of cross-entropy that the loss and its gradient share.
class CrossEntropy {
 public:
  explicit CrossEntropy(const CpuNode& n)
      : shape_(ClassesOf(n)), weight_(WeightOf(n)), graph_input_(n.graph_inputs[1]) {
    shape_.label_smoothing = static_cast<float>(NumberAttribute(*n.node, "label_smoothing"));
    const auto [first, whole] = PartAttributes(*n.node, shape_.classes);
    shape_.first = first;
    shape_.whole = whole;
  }

  const kernels::CrossEntropyShape& shape() const { return shape_; }

  // Returns the weight of a row's loss in the global batch's loss.
  double RowWeight(const int32_t* target, const RunNumbers& numbers) const {
    const double rows = RowsOfBatch(target, numbers);
    return rows > 0 ? weight_ / rows : 0.0;
  }

 private:
  double RowsOfBatch(const int32_t* target, const RunNumbers& numbers) const {
    if (!shape_.ignore_index) return numbers.of_batch(shape_.rows);
    if (numbers.counted_targets != nullptr && graph_input_ >= 0) {
      return double(numbers.counted_targets[graph_input_]);
    }
    return double(kernels::CountedTargets(target, shape_));
  }

  kernels::CrossEntropyShape shape_;
  double weight_;
  int graph_input_;
};

// Plans the loss of a rank's classes. The parts of all ranks are in the workspace.
PlannedNode PlanSplitCrossEntropy(const CpuNode& n, int64_t ranks) {
  const int64_t part = n.rows(0) * kernels::kCrossEntropyParts;  // floats of a rank
  PlannedNode plan{.is_collective = true,
                   .workspace_bytes = ranks * part * static_cast<int64_t>(sizeof(float))};
  plan.prepare = Call([loss = CrossEntropy(n), name = n.node->name(), ranks, part](
                          const NodeMemory& m, const RunNumbers& numbers) -> absl::Status {
    Communicator* const communicator = numbers.tensor_parallel;
    CHECK(communicator != nullptr && communicator->world_size() == ranks)
        << "a loss that " << ranks << " ranks share";
    // All ranks have the same targets, so all return here or none.
    RETURN_IF_ERROR(CheckTargets(name, Ids(m, 1), loss.shape()));
    float* const all = Workspace(m);
    float* const own = all + communicator->rank() * part;
    kernels::SoftmaxCrossEntropyParts(own, Input(m, 0), Ids(m, 1), loss.shape());
    RETURN_IF_ERROR(communicator->AllGather(absl::MakeConstSpan(own, part),
                                            absl::MakeSpan(all, ranks * part),
                                            /*stream=*/nullptr));
    const auto factor = static_cast<float>(loss.RowWeight(Ids(m, 1), numbers));
    kernels::MergeSoftmaxCrossEntropy(Output(m), Output(m, 1), all, ranks, Ids(m, 1), factor,
                                      loss.shape());
    return absl::OkStatus();
  });
  return plan;
}

PlannedNode PlanSoftmaxCrossEntropy(const CpuNode& n) {
  const int64_t ranks = IntegerAttribute(*n.node, "ranks");
  if (ranks > 1) return PlanSplitCrossEntropy(n, ranks);
  return {.prepare = Call([loss = CrossEntropy(n), name = n.node->name()](
                              const NodeMemory& m, const RunNumbers& numbers) {
            absl::Status in_range = CheckTargets(name, Ids(m, 1), loss.shape());
            if (in_range.ok()) {
              const auto factor = static_cast<float>(loss.RowWeight(Ids(m, 1), numbers));
              kernels::SoftmaxCrossEntropy(Output(m), Output(m, 1), Input(m, 0), Ids(m, 1), factor,
                                           loss.shape());
            }
            return in_range;
          })};
}

PlannedNode PlanSoftmaxCrossEntropyGrad(const CpuNode& n) {
  return {.overwritable = {0},
          .prepare = Call([loss = CrossEntropy(n)](const NodeMemory& m, const RunNumbers& numbers) {
            const double factor = numbers.loss_scale * loss.RowWeight(Ids(m, 1), numbers);
            kernels::SoftmaxCrossEntropyGrad(Output(m), Input(m, 0), Ids(m, 1), Input(m, 2),
                                             static_cast<float>(factor), loss.shape());
          })};
}

PlannedNode PlanCorrectCount(const CpuNode& n) {
  return {.prepare = Call([shape = ClassesOf(n), name = n.node->name()](const NodeMemory& m) {
            absl::Status in_range = CheckTargets(name, Ids(m, 1), shape);
            if (in_range.ok()) kernels::CorrectCount(Output(m), Input(m, 0), Ids(m, 1), shape);
            return in_range;
          })};
}

// --- Losses of single elements ------------------------------------------------------------------

using ElementLoss = void (*)(float* loss, const float* prediction, const float* target,
                             float factor, int64_t n);

template <ElementLoss kLoss>
PlannedNode PlanElementLoss(const CpuNode& n) {
  return {.prepare = Call([size = n.elements(0), weight = WeightOf(n)](const NodeMemory& m,
                                                                       const RunNumbers& numbers) {
            const double factor = weight / numbers.of_batch(size);
            kLoss(Output(m), Input(m, 0), Input(m, 1), static_cast<float>(factor), size);
          })};
}

// Plans the gradient of a loss per element. Its factor is that of the loss, times the loss scale.
// `kGrad` writes one value per element.
template <ElementLoss kGrad>
PlannedNode PlanElementLossGrad(const CpuNode& n) {
  return {.overwritable = {0},
          .prepare = Call([size = n.elements(0), weight = WeightOf(n)](const NodeMemory& m,
                                                                       const RunNumbers& numbers) {
            const double factor = numbers.loss_scale * weight / numbers.of_batch(size);
            kGrad(Output(m), Input(m, 0), Input(m, 1), static_cast<float>(factor), size);
          })};
}

// --- Losses that the graph computes itself ------------------------------------------------------

double ShareOf(const RunNumbers& numbers) {
  return double(numbers.samples) / double(numbers.batch);
}

PlannedNode PlanBatchShare(const CpuNode&) {
  return {.overwritable = {0}, .prepare = Call([](const NodeMemory& m, const RunNumbers& numbers) {
                                 *Output(m) = static_cast<float>(*Input(m, 0) * ShareOf(numbers));
                               })};
}

PlannedNode PlanBatchShareGrad(const CpuNode&) {
  return {.shape_only = {0}, .prepare = Call([](const NodeMemory& m, const RunNumbers& numbers) {
                               *Output(m) =
                                   static_cast<float>(numbers.loss_scale * ShareOf(numbers));
                             })};
}

}  // namespace

void AddLossKernels(CpuKernelTable& table) {
  table["SoftmaxCrossEntropy"] = {PlanSoftmaxCrossEntropy};
  table["SoftmaxCrossEntropyGrad"] = {PlanSoftmaxCrossEntropyGrad};
  table["BatchShare"] = {PlanBatchShare};
  table["BatchShareGrad"] = {PlanBatchShareGrad};
  table["CorrectCount"] = {PlanCorrectCount};
  table["SigmoidCrossEntropy"] = {PlanElementLoss<kernels::SigmoidCrossEntropy>};
  table["SigmoidCrossEntropyGrad"] = {PlanElementLossGrad<kernels::SigmoidCrossEntropyGrad>};
  table["MeanSquaredError"] = {PlanElementLoss<kernels::MeanSquaredError>};
  table["MeanSquaredErrorGrad"] = {PlanElementLossGrad<kernels::MeanSquaredErrorGrad>};
}

}  // namespace muster
