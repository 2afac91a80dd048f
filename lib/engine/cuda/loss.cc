// Losses: each gives this run's share of the global batch's mean.
#include "absl/types/span.h"
#include "glog/logging.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/softmax.h"
#include "lib/engine/cuda/binding.h"
#include "lib/graph/attributes.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// Bytes of the factor that scales the loss. It is at the start of the workspace.
constexpr int64_t kFactorBytes = kWorkspaceAlignment;

cuda::CrossEntropyShape ShapeOf(const CudaNode& node) {
  const int64_t classes = node.columns(0);
  return {.logits = {node.rows(0), classes, node.type(0)},
          .row = PaddedSize(node, classes),
          .has_ignore_index = IgnoreIndex(*node.node).has_value(),
          .ignore_index = static_cast<int32_t>(IgnoreIndex(*node.node).value_or(0))};
}

cuda::CrossEntropyShape SmoothedShapeOf(const CudaNode& node) {
  cuda::CrossEntropyShape shape = ShapeOf(node);
  shape.label_smoothing = static_cast<float>(NumberAttribute(*node.node, "label_smoothing"));
  const auto [first, whole] = PartAttributes(*node.node, shape.logits.classes);
  shape.first = first;
  shape.whole = whole;
  return shape;
}

// Returns the address of the global batch's target count for the node's graph input, or null if
// there is none.
const int64_t* CountedOf(const CudaNode& node) {
  const int input = node.graph_inputs[1];
  return input < 0 ? nullptr : node.context.counted_targets + input;
}

float WeightOf(const CudaNode& node) {
  return static_cast<float>(NumberAttribute(*node.node, "weight"));
}

int64_t RowBytes(const CudaNode& node) { return node.rows(0) * int64_t{sizeof(float)}; }

// Plans the loss of a rank's classes. The workspace has the factor, the parts of all ranks, and the
// losses of the rows.
PlannedNode PlanSplitCrossEntropy(const CudaNode& node, int64_t ranks) {
  const int64_t part = node.rows(0) * cuda::kCrossEntropyParts;  // floats of a rank
  const int64_t all_bytes = Aligned(ranks * part * int64_t{sizeof(float)});
  PlannedNode plan{.is_collective = true,
                   .workspace_bytes = kFactorBytes + all_bytes + RowBytes(node)};
  plan.prepare = [=, shape = SmoothedShapeOf(node), weight = WeightOf(node),
                  counted = CountedOf(node), numbers = node.context.numbers,
                  flag = node.context.out_of_range,
                  stream = node.context.stream](const NodeMemory& m) -> NodeRun {
    return [=](const RunNumbers& run) -> absl::Status {
      Communicator* const communicator = run.tensor_parallel;
      CHECK(communicator == nullptr || communicator->world_size() == ranks)
          << "a loss that " << ranks << " ranks share";
      const int32_t* target = Ids(m.inputs[1]);
      float* const factor = Floats(m.workspace);
      float* const all = Floats(m.workspace + kFactorBytes);
      float* const losses = Floats(m.workspace + kFactorBytes + all_bytes);
      float* const own = communicator == nullptr ? all : all + communicator->rank() * part;
      RETURN_IF_ERROR(StatusOf(cuda::LossFactor(factor, weight, numbers, shape.logits.rows, target,
                                                &shape, counted, stream)));
      RETURN_IF_ERROR(
          StatusOf(cuda::SoftmaxCrossEntropyParts(own, m.inputs[0], target, shape, flag, stream)));
      if (communicator != nullptr) {
        RETURN_IF_ERROR(communicator->AllGather(absl::MakeConstSpan(own, part),
                                                absl::MakeSpan(all, ranks * part), stream));
      }
      return StatusOf(cuda::MergeSoftmaxCrossEntropy(Floats(m.outputs[0]), Floats(m.outputs[1]),
                                                     all, ranks, target, factor, shape, losses,
                                                     stream));
    };
  };
  return Padded(node, std::move(plan));
}

absl::StatusOr<PlannedNode> PlanCrossEntropy(const CudaNode& node) {
  const int64_t ranks = IntegerAttribute(*node.node, "ranks");
  if (ranks > 1) return PlanSplitCrossEntropy(node, ranks);
  return Padded(
      node, {.workspace_bytes = kFactorBytes + RowBytes(node),
             .prepare = Enqueue([shape = SmoothedShapeOf(node), weight = WeightOf(node),
                                 counted = CountedOf(node), numbers = node.context.numbers,
                                 flag = node.context.out_of_range,
                                 stream = node.context.stream](const NodeMemory& m) {
               float* factor = Floats(m.workspace);
               const int32_t* target = Ids(m.inputs[1]);
               const cudaError_t error = cuda::LossFactor(
                   factor, weight, numbers, shape.logits.rows, target, &shape, counted, stream);
               if (error != cudaSuccess) return error;
               return cuda::SoftmaxCrossEntropy(Floats(m.outputs[0]), Floats(m.outputs[1]),
                                                m.inputs[0], target, factor, shape,
                                                Floats(m.workspace + kFactorBytes), flag, stream);
             })});
}

absl::StatusOr<PlannedNode> PlanCrossEntropyGrad(const CudaNode& node) {
  return Padded(node,
                {.overwritable = {0},
                 .workspace_bytes = kFactorBytes,
                 .prepare = Enqueue([shape = SmoothedShapeOf(node), weight = WeightOf(node),
                                     counted = CountedOf(node), numbers = node.context.numbers,
                                     stream = node.context.stream](const NodeMemory& m) {
                   float* factor = Floats(m.workspace);
                   const int32_t* target = Ids(m.inputs[1]);
                   const cudaError_t error = cuda::LossFactor(
                       factor, weight, numbers, shape.logits.rows, target, &shape, counted, stream);
                   if (error != cudaSuccess) return error;
                   return cuda::SoftmaxCrossEntropyGrad(m.outputs[0], m.inputs[0], target,
                                                        Floats(m.inputs[2]), factor, numbers, shape,
                                                        stream);
                 })});
}

absl::StatusOr<PlannedNode> PlanCorrectCount(const CudaNode& node) {
  return Padded(node, {.workspace_bytes = RowBytes(node),
                       .prepare = Enqueue([shape = ShapeOf(node),
                                           stream = node.context.stream](const NodeMemory& m) {
                         return cuda::CorrectCount(Floats(m.outputs[0]), m.inputs[0],
                                                   Ids(m.inputs[1]), shape, Floats(m.workspace),
                                                   stream);
                       })});
}

template <cuda::ElementLoss kind>
absl::StatusOr<PlannedNode> PlanElementLoss(const CudaNode& node) {
  return PlannedNode{.workspace_bytes = kFactorBytes + cuda::kLossParts * int64_t{sizeof(float)},
                     .prepare = Enqueue([n = node.elements(0), type = node.type(0),
                                         weight = WeightOf(node), numbers = node.context.numbers,
                                         stream = node.context.stream](const NodeMemory& m) {
                       float* factor = Floats(m.workspace);
                       const cudaError_t error = cuda::LossFactor(
                           factor, weight, numbers, n, nullptr, nullptr, nullptr, stream);
                       if (error != cudaSuccess) return error;
                       return cuda::SumElementLoss(kind, Floats(m.outputs[0]), m.inputs[0], type,
                                                   Floats(m.inputs[1]), factor, n,
                                                   Floats(m.workspace + kFactorBytes), stream);
                     })};
}

template <cuda::ElementLoss kind>
absl::StatusOr<PlannedNode> PlanElementLossGrad(const CudaNode& node) {
  return PlannedNode{
      .overwritable = {0},
      .workspace_bytes = kFactorBytes,
      .prepare = Enqueue([n = node.elements(0), type = node.type(0), weight = WeightOf(node),
                          numbers = node.context.numbers,
                          stream = node.context.stream](const NodeMemory& m) {
        float* factor = Floats(m.workspace);
        const cudaError_t error =
            cuda::LossFactor(factor, weight, numbers, n, nullptr, nullptr, nullptr, stream);
        if (error != cudaSuccess) return error;
        return cuda::ElementLossGrad(kind, m.outputs[0], m.inputs[0], type, Floats(m.inputs[1]),
                                     factor, numbers, n, stream);
      })};
}

absl::StatusOr<PlannedNode> PlanBatchShare(const CudaNode& node) {
  return PlannedNode{
      .overwritable = {0},
      .prepare = Enqueue(
          [numbers = node.context.numbers, stream = node.context.stream](const NodeMemory& m) {
            return cuda::BatchShare(Floats(m.outputs[0]), Floats(m.inputs[0]), numbers, stream);
          })};
}

absl::StatusOr<PlannedNode> PlanBatchShareGrad(const CudaNode& node) {
  return PlannedNode{.shape_only = {0},
                     .prepare = Enqueue([numbers = node.context.numbers,
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::BatchShareGrad(Floats(m.outputs[0]), numbers, stream);
                     })};
}

absl::StatusOr<PlannedNode> PlanStatisticGrad(const CudaNode& node) {
  return PlannedNode{.prepare = Enqueue([n = node.elements(0), numbers = node.context.numbers,
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::WeighStatistic(Floats(m.outputs[0]), Floats(m.inputs[0]),
                                                   numbers, n, stream);
                     })};
}

}  // namespace

void AddLossKernels(CudaKernelTable& table) {
  table["SoftmaxCrossEntropy"] = PlanCrossEntropy;
  table["SoftmaxCrossEntropyGrad"] = PlanCrossEntropyGrad;
  table["SigmoidCrossEntropy"] = PlanElementLoss<cuda::ElementLoss::kSigmoidCrossEntropy>;
  table["SigmoidCrossEntropyGrad"] = PlanElementLossGrad<cuda::ElementLoss::kSigmoidCrossEntropy>;
  table["MeanSquaredError"] = PlanElementLoss<cuda::ElementLoss::kSquaredError>;
  table["MeanSquaredErrorGrad"] = PlanElementLossGrad<cuda::ElementLoss::kSquaredError>;
  table["BatchShare"] = PlanBatchShare;
  table["BatchShareGrad"] = PlanBatchShareGrad;
  table["CorrectCount"] = PlanCorrectCount;
  table["StatisticGrad"] = PlanStatisticGrad;
}

}  // namespace muster
