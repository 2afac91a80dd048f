// Normalisations.
#include "absl/types/span.h"
#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/group_norm.h"
#include "kernels/cuda/layer_norm.h"
#include "lib/engine/cuda/binding.h"
#include "lib/graph/attributes.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using Activation = cuda::BatchNormActivation;

float Epsilon(const CudaNode& node) {
  return static_cast<float>(NumberAttribute(*node.node, "epsilon"));
}

// --- BatchNorm ----------------------------------------------------------------------------------

cuda::BatchNormShape BatchNormShapeOf(const CudaNode& node, int x, Activation activation) {
  const std::vector<int64_t>& shape = node.shape(x);
  return {.batch = shape[0],
          .channels = shape[1],
          .pixels = node.elements(x) / shape[0] / shape[1],
          .order = node.layouts[x] == kChannelsLast ? cuda::ChannelOrder::kLast
                                                    : cuda::ChannelOrder::kFirst,
          .type = node.type(x),
          .activation = activation};
}

// Returns the shape of a node that computes moments, or their gradients.
cuda::BatchNormShape SynchronisedShapeOf(const CudaNode& node, int x, Activation activation) {
  cuda::BatchNormShape shape = BatchNormShapeOf(node, x, activation);
  if (IntegerAttribute(*node.node, "synchronised") != 0) {
    shape.devices = node.context.synchronised_devices;
  }
  return shape;
}

// Returns a prepare(). Its runs call sums(memory), gather the sums of all devices, and call
// apply(memory).
template <typename Sums, typename Apply>
std::function<NodeRun(const NodeMemory&)> EnqueueHalves(const cuda::BatchNormShape& shape,
                                                        cudaStream_t stream, Sums sums,
                                                        Apply apply) {
  return [=](const NodeMemory& memory) -> NodeRun {
    return [=](const RunNumbers& numbers) -> absl::Status {
      RETURN_IF_ERROR(StatusOf(sums(memory)));
      if (shape.devices > 1 && numbers.communicator != nullptr) {
        const cuda::BatchNormSums exchanged = cuda::BatchNormSumsIn(shape, memory.workspace);
        RETURN_IF_ERROR(numbers.communicator->AllGather(
            absl::MakeConstSpan(exchanged.own, exchanged.size),
            absl::MakeSpan(exchanged.all, exchanged.size * shape.devices), stream));
      }
      return StatusOf(apply(memory));
    };
  };
}

// The inputs of a forward node, except x.
struct BatchNormInputs {
  const std::byte* addend;
  const std::byte* bias;
  const std::byte* gain;
};

// The tensors of a backward node, except dy.
struct BatchNormGradTensors {
  cuda::BatchNormGradients gradients;
  const std::byte* dy_second;
  const std::byte* x;
  const std::byte* y;
  const float* mean;
  const float* rstd;
  const std::byte* state;
};

// Completes the plan of a forward node. `inputs` maps its memory to a BatchNormInputs.
template <typename F>
void PrepareBatchNorm(const CudaNode& node, const cuda::BatchNormShape& shape, F inputs,
                      PlannedNode& plan) {
  const cudaStream_t stream = node.context.stream;
  plan.is_collective = shape.devices > 1;
  plan.prepare = EnqueueHalves(
      shape, stream,
      [=](const NodeMemory& m) {
        return cuda::BatchNormMoments(m.inputs[0], shape, m.workspace, stream);
      },
      [=, epsilon = Epsilon(node)](const NodeMemory& m) {
        const BatchNormInputs of = inputs(m);
        return cuda::BatchNormApply({.y = m.outputs[0],
                                     .mean = Floats(m.outputs[1]),
                                     .rstd = Floats(m.outputs[2]),
                                     .variance = Floats(m.outputs[3]),
                                     .state = m.outputs[4]},
                                    m.inputs[0], of.addend, of.bias, of.gain, epsilon, shape,
                                    m.workspace, stream);
      });
}

// Completes the plan of a backward node. `tensors` maps its memory to a BatchNormGradTensors.
template <typename F>
void PrepareBatchNormGrad(const CudaNode& node, const cuda::BatchNormShape& shape, F tensors,
                          PlannedNode& plan) {
  const cudaStream_t stream = node.context.stream;
  plan.is_collective = shape.devices > 1;
  plan.prepare = EnqueueHalves(
      shape, stream,
      [=](const NodeMemory& m) {
        const BatchNormGradTensors of = tensors(m);
        return cuda::BatchNormGradSums(of.gradients, m.inputs[0], of.dy_second, of.x, of.y, of.mean,
                                       of.state, shape, m.workspace, stream);
      },
      [=](const NodeMemory& m) {
        const BatchNormGradTensors of = tensors(m);
        return cuda::BatchNormGradApply(of.gradients, m.inputs[0], of.x, of.mean, of.rstd, of.state,
                                        shape, m.workspace, stream);
      });
}

template <Activation activation>
absl::StatusOr<PlannedNode> PlanBatchNorm(const CudaNode& node) {
  const cuda::BatchNormShape shape = SynchronisedShapeOf(node, 0, activation);
  PlannedNode plan{.input_layouts = {node.layouts[0]},
                   .output_layouts = {node.layouts[0]},
                   .overwritable = {0},
                   .shape_only = {1, 2},
                   .workspace_bytes = cuda::BatchNormWorkspaceBytes(shape),
                   .state_bytes = {cuda::BatchNormStateBytes(shape)}};
  PrepareBatchNorm(
      node, shape,
      [](const NodeMemory& m) {
        return BatchNormInputs{.addend = nullptr, .bias = m.inputs[3], .gain = OptionalInput(m, 4)};
      },
      plan);
  return plan;
}

// Inputs: x, addend, running_mean, running_variance, bias, gain?.
absl::StatusOr<PlannedNode> PlanBatchNormAddRelu(const CudaNode& node) {
  const Layout layout = node.layouts[0];
  const cuda::BatchNormShape shape = SynchronisedShapeOf(node, 0, Activation::kRelu);
  PlannedNode plan{.input_layouts = {layout, layout},
                   .output_layouts = {layout},
                   .overwritable = {0, 1},
                   .shape_only = {2, 3},
                   .workspace_bytes = cuda::BatchNormWorkspaceBytes(shape),
                   .state_bytes = {cuda::BatchNormStateBytes(shape)}};
  PrepareBatchNorm(
      node, shape,
      [](const NodeMemory& m) {
        return BatchNormInputs{
            .addend = m.inputs[1], .bias = m.inputs[4], .gain = OptionalInput(m, 5)};
      },
      plan);
  return plan;
}

// Inputs: dy, with kTwo dy_second, y, x, mean, rstd, state, bias, gain?. Outputs: dx, daddend,
// dbias, dgain?.
template <bool kTwo>
absl::StatusOr<PlannedNode> PlanBatchNormAddReluGrad(const CudaNode& node) {
  constexpr int kY = kTwo ? 2 : 1, kX = kY + 1;
  const Layout layout = node.layouts[kX];
  const cuda::BatchNormShape shape = SynchronisedShapeOf(node, kX, Activation::kRelu);
  PlannedNode plan{.input_layouts = std::vector<Layout>(kX + 1, layout),
                   .output_layouts = {layout, layout},
                   .overwritable = {0, kX},
                   .shape_only = {kX + 4},
                   .workspace_bytes = cuda::BatchNormWorkspaceBytes(shape)};
  if (node.inputs.size() > kX + 5) plan.shape_only.push_back(kX + 5);
  PrepareBatchNormGrad(
      node, shape,
      [](const NodeMemory& m) {
        return BatchNormGradTensors{.gradients = {.dx = m.outputs[0],
                                                  .dbias = m.outputs[2],
                                                  .dgain = OptionalOutput(m, 3),
                                                  .daddend = m.outputs[1]},
                                    .dy_second = kTwo ? m.inputs[1] : nullptr,
                                    .x = m.inputs[kX],
                                    .y = m.inputs[kY],
                                    .mean = Floats(m.inputs[kX + 1]),
                                    .rstd = Floats(m.inputs[kX + 2]),
                                    .state = m.inputs[kX + 3]};
      },
      plan);
  return plan;
}

absl::StatusOr<PlannedNode> PlanBatchNormInference(const CudaNode& node) {
  const cuda::BatchNormShape shape = BatchNormShapeOf(node, 0, Activation::kNone);
  PlannedNode plan{.input_layouts = {node.layouts[0]},
                   .output_layouts = {node.layouts[0]},
                   .overwritable = {0},
                   .workspace_bytes = cuda::BatchNormWorkspaceBytes(shape)};
  plan.prepare =
      Enqueue([shape, epsilon = Epsilon(node), stream = node.context.stream](const NodeMemory& m) {
        return cuda::BatchNormInference(m.outputs[0], m.inputs[0], Floats(m.inputs[1]),
                                        Floats(m.inputs[2]), m.inputs[3], OptionalInput(m, 4),
                                        epsilon, shape, m.workspace, stream);
      });
  return plan;
}

// Inputs: dy, x, mean, rstd, state, bias, gain?. The state includes the values of bias and gain.
template <Activation activation>
absl::StatusOr<PlannedNode> PlanBatchNormGrad(const CudaNode& node) {
  const Layout layout = node.layouts[1];  // x's layout, which the forward kernel kept
  const cuda::BatchNormShape shape = SynchronisedShapeOf(node, 1, activation);
  PlannedNode plan{.input_layouts = {layout, layout},
                   .output_layouts = {layout},
                   .overwritable = {0, 1},
                   .shape_only = {5},
                   .workspace_bytes = cuda::BatchNormWorkspaceBytes(shape)};
  if (node.inputs.size() > 6) plan.shape_only.push_back(6);
  PrepareBatchNormGrad(
      node, shape,
      [](const NodeMemory& m) {
        return BatchNormGradTensors{.gradients = {.dx = m.outputs[0],
                                                  .dbias = m.outputs[1],
                                                  .dgain = OptionalOutput(m, 2),
                                                  .daddend = nullptr},
                                    .dy_second = nullptr,
                                    .x = m.inputs[1],
                                    .y = nullptr,
                                    .mean = Floats(m.inputs[2]),
                                    .rstd = Floats(m.inputs[3]),
                                    .state = m.inputs[4]};
      },
      plan);
  return plan;
}

// --- LayerNorm and RmsNorm ----------------------------------------------------------------------

cuda::NormRows RowsOf(const CudaNode& node) {
  return {node.rows(0), node.columns(0), node.type(0)};
}

absl::StatusOr<PlannedNode> PlanLayerNorm(const CudaNode& node) {
  return PlannedNode{.overwritable = {0},
                     .prepare = Enqueue([shape = RowsOf(node), epsilon = Epsilon(node),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::LayerNorm({.y = m.outputs[0],
                                               .mean = Floats(m.outputs[1]),
                                               .rstd = Floats(m.outputs[2]),
                                               .x = m.inputs[0],
                                               .gain = m.inputs[1],
                                               .bias = OptionalInput(m, 2),
                                               .epsilon = epsilon},
                                              shape, stream);
                     })};
}

absl::StatusOr<PlannedNode> PlanAddLayerNorm(const CudaNode& node) {
  return PlannedNode{.prepare = Enqueue([shape = RowsOf(node), epsilon = Epsilon(node),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::LayerNorm({.y = m.outputs[0],
                                               .mean = Floats(m.outputs[1]),
                                               .rstd = Floats(m.outputs[2]),
                                               .sum = m.outputs[3],
                                               .x = m.inputs[0],
                                               .addend = m.inputs[1],
                                               .gain = m.inputs[2],
                                               .bias = OptionalInput(m, 3),
                                               .epsilon = epsilon},
                                              shape, stream);
                     })};
}

absl::StatusOr<PlannedNode> PlanRmsNorm(const CudaNode& node) {
  return PlannedNode{.overwritable = {0},
                     .prepare = Enqueue([shape = RowsOf(node), epsilon = Epsilon(node),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::LayerNorm({.y = m.outputs[0],
                                               .rstd = Floats(m.outputs[1]),
                                               .x = m.inputs[0],
                                               .gain = m.inputs[1],
                                               .epsilon = epsilon},
                                              shape, stream);
                     })};
}

// Inputs: dy, x, gain, mean, rstd. RmsNorm has no mean.
template <bool kHasMean>
absl::StatusOr<PlannedNode> PlanGradInput(const CudaNode& node) {
  return PlannedNode{
      .overwritable = {0, 1},
      .prepare = Enqueue([shape = RowsOf(node), stream = node.context.stream](const NodeMemory& m) {
        const float* mean = kHasMean ? Floats(m.inputs[3]) : nullptr;
        return cuda::LayerNormGradInput(m.outputs[0], m.inputs[0], m.inputs[1], m.inputs[2], mean,
                                        Floats(m.inputs[kHasMean ? 4 : 3]), shape, stream);
      })};
}

// Inputs: dy, x, mean, rstd, and shapes. RmsNorm has no mean.
template <bool kHasMean>
absl::StatusOr<PlannedNode> PlanGradParameters(const CudaNode& node) {
  PlannedNode plan{.workspace_bytes = cuda::LayerNormGradParametersWorkspaceBytes(RowsOf(node))};
  for (int i = 4; i < static_cast<int>(node.inputs.size()); ++i) plan.shape_only.push_back(i);
  plan.prepare = Enqueue([shape = RowsOf(node), stream = node.context.stream](const NodeMemory& m) {
    const float* mean = kHasMean ? Floats(m.inputs[2]) : nullptr;
    return cuda::LayerNormGradParameters(m.outputs[0], OptionalOutput(m, 1), m.inputs[0],
                                         m.inputs[1], mean, Floats(m.inputs[kHasMean ? 3 : 2]),
                                         shape, m.workspace, stream);
  });
  return plan;
}

// Inputs: dy, dsum (with kTwo dy_second), sum, gain, mean, rstd, bias?.
template <bool kTwo>
absl::StatusOr<PlannedNode> PlanLayerNormGrad(const CudaNode& node) {
  PlannedNode plan{.overwritable = {0, 1},
                   .shape_only = {6},
                   .workspace_bytes = cuda::LayerNormGradWorkspaceBytes(RowsOf(node))};
  if (!kTwo) plan.overwritable.push_back(2);
  plan.prepare = Enqueue([shape = RowsOf(node), stream = node.context.stream](const NodeMemory& m) {
    return cuda::LayerNormGrad({.dx = m.outputs[0],
                                .dgain = m.outputs[1],
                                .dbias = OptionalOutput(m, 2),
                                .dy = m.inputs[0],
                                .dy_second = kTwo ? m.inputs[1] : nullptr,
                                .dsum = kTwo ? nullptr : m.inputs[1],
                                .x = m.inputs[2],
                                .gain = m.inputs[3],
                                .mean = Floats(m.inputs[4]),
                                .rstd = Floats(m.inputs[5])},
                               shape, m.workspace, stream);
  });
  return plan;
}

// --- GroupNorm ----------------------------------------------------------------------------------

cuda::GroupNormShape GroupsOf(const CudaNode& node) {
  const std::vector<int64_t>& shape = node.shape(0);
  return {.batch = shape[0],
          .channels = shape[1],
          .pixels = node.elements(0) / shape[0] / shape[1],
          .groups = IntegerAttribute(*node.node, "groups"),
          .type = node.type(0)};
}

absl::StatusOr<PlannedNode> PlanGroupNorm(const CudaNode& node) {
  return PlannedNode{.overwritable = {0},
                     .prepare = Enqueue([shape = GroupsOf(node), epsilon = Epsilon(node),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::GroupNorm(m.outputs[0], Floats(m.outputs[1]),
                                              Floats(m.outputs[2]), m.inputs[0], m.inputs[1],
                                              m.inputs[2], epsilon, shape, stream);
                     })};
}

absl::StatusOr<PlannedNode> PlanGroupNormGradInput(const CudaNode& node) {
  return PlannedNode{.overwritable = {0, 1},
                     .prepare = Enqueue([shape = GroupsOf(node),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::GroupNormGradInput(m.outputs[0], m.inputs[0], m.inputs[1],
                                                       m.inputs[2], Floats(m.inputs[3]),
                                                       Floats(m.inputs[4]), shape, stream);
                     })};
}

absl::StatusOr<PlannedNode> PlanGroupNormGradParameters(const CudaNode& node) {
  return PlannedNode{.prepare = Enqueue([shape = GroupsOf(node),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::GroupNormGradParameters(m.outputs[0], m.outputs[1], m.inputs[0],
                                                            m.inputs[1], Floats(m.inputs[2]),
                                                            Floats(m.inputs[3]), shape, stream);
                     })};
}

}  // namespace

void AddNormalisationKernels(CudaKernelTable& table) {
  table["BatchNorm"] = PlanBatchNorm<Activation::kNone>;
  table["BatchNormRelu"] = PlanBatchNorm<Activation::kRelu>;
  table["BatchNormAddRelu"] = PlanBatchNormAddRelu;
  table["BatchNormAddReluGrad"] = PlanBatchNormAddReluGrad<false>;
  table["AccumulateBatchNormAddReluGrad"] = PlanBatchNormAddReluGrad<true>;
  table["BatchNormInference"] = PlanBatchNormInference;
  table["BatchNormGrad"] = PlanBatchNormGrad<Activation::kNone>;
  table["BatchNormReluGrad"] = PlanBatchNormGrad<Activation::kRelu>;
  table["LayerNorm"] = PlanLayerNorm;
  table["AddLayerNorm"] = PlanAddLayerNorm;
  table["RmsNorm"] = PlanRmsNorm;
  table["LayerNormGradInput"] = PlanGradInput<true>;
  table["LayerNormGradParameters"] = PlanGradParameters<true>;
  table["AddLayerNormGrad"] = PlanLayerNormGrad<false>;
  table["AccumulateLayerNormGrad"] = PlanLayerNormGrad<true>;
  table["RmsNormGradInput"] = PlanGradInput<false>;
  table["RmsNormGradGain"] = PlanGradParameters<false>;
  table["GroupNorm"] = PlanGroupNorm;
  table["GroupNormGradInput"] = PlanGroupNormGradInput;
  table["GroupNormGradParameters"] = PlanGroupNormGradParameters;
}

}  // namespace muster
