// Normalisations.
#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "kernels/activation.h"
#include "kernels/batch_norm.h"
#include "kernels/elementwise.h"
#include "kernels/group_norm.h"
#include "kernels/layer_norm.h"
#include "kernels/rms_norm.h"
#include "lib/engine/cpu/binding.h"
#include "lib/graph/attributes.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using Activation = kernels::BatchNormActivation;

float Epsilon(const CpuNode& n) { return static_cast<float>(NumberAttribute(*n.node, "epsilon")); }

// --- BatchNorm ----------------------------------------------------------------------------------

kernels::BatchNormShape BatchNormShapeOf(const CpuNode& n, const TensorType& x, Layout layout) {
  return {.batch = x.shape[0],
          .channels = x.shape[1],
          .pixels = x.elements() / x.shape[0] / x.shape[1],
          .layout = n.layout_table[layout]};
}

// Returns the shape of a node that computes moments, or their gradients.
kernels::BatchNormShape SynchronisedShapeOf(const CpuNode& n, const TensorType& x, Layout layout) {
  kernels::BatchNormShape shape = BatchNormShapeOf(n, x, layout);
  if (IntegerAttribute(*n.node, "synchronised") != 0) shape.devices = n.synchronised_devices;
  return shape;
}

absl::Status GatherSums(const kernels::BatchNormShape& shape, std::byte* workspace,
                        const RunNumbers& numbers) {
  if (shape.devices == 1) return absl::OkStatus();
  CHECK(numbers.communicator != nullptr && numbers.communicator->world_size() == shape.devices)
      << "a synchronised norm of " << shape.devices << " devices";
  const kernels::BatchNormSums sums = kernels::BatchNormSumsIn(shape, workspace);
  return numbers.communicator->AllGather(absl::MakeConstSpan(sums.own, sums.size),
                                         absl::MakeSpan(sums.all, sums.size * shape.devices),
                                         /*stream=*/nullptr);
}

absl::Status BatchNorm(const kernels::BatchNormOutputs& outputs, const float* x, const float* bias,
                       const float* gain, float epsilon, const kernels::BatchNormShape& shape,
                       Activation activation, std::byte* workspace, const RunNumbers& numbers) {
  kernels::BatchNormMoments(x, shape, workspace);
  RETURN_IF_ERROR(GatherSums(shape, workspace, numbers));
  kernels::BatchNormApply(outputs, x, bias, gain, epsilon, shape, activation, workspace);
  return absl::OkStatus();
}

absl::Status BatchNormGrad(const kernels::BatchNormGradients& gradients, const float* dy,
                           const float* x, const float* mean, const float* rstd, const float* state,
                           const float* gain, const kernels::BatchNormShape& shape,
                           Activation activation, std::byte* workspace, const RunNumbers& numbers) {
  kernels::BatchNormGradSums(dy, x, mean, rstd, state, gain, shape, activation, workspace);
  RETURN_IF_ERROR(GatherSums(shape, workspace, numbers));
  kernels::BatchNormGradApply(gradients, dy, x, rstd, shape, activation, workspace);
  return absl::OkStatus();
}

template <Activation kActivation>
PlannedNode PlanBatchNorm(const CpuNode& n) {
  const kernels::BatchNormShape shape = SynchronisedShapeOf(n, n.inputs[0], n.layouts[0]);
  PlannedNode plan{.input_layouts = {n.layouts[0]},
                   .output_layouts = {n.layouts[0]},
                   .overwritable = {0},
                   .shape_only = {1, 2},
                   .workspace_bytes = kernels::BatchNormWorkspaceBytes(shape),
                   .state_bytes = {shape.state_floats() * int64_t{sizeof(float)}}};
  plan.prepare = Call([shape, epsilon = Epsilon(n)](const NodeMemory& m, const RunNumbers& r) {
    return BatchNorm({.y = Output(m),
                      .mean = Output(m, 1),
                      .rstd = Output(m, 2),
                      .variance = Output(m, 3),
                      .state = Output(m, 4)},
                     Input(m, 0), Input(m, 3), OptionalInput(m, 4), epsilon, shape, kActivation,
                     m.workspace, r);
  });
  return plan;
}

PlannedNode PlanBatchNormInference(const CpuNode& n) {
  const kernels::BatchNormShape shape = BatchNormShapeOf(n, n.inputs[0], n.layouts[0]);
  PlannedNode plan{.input_layouts = {n.layouts[0]},
                   .output_layouts = {n.layouts[0]},
                   .overwritable = {0},
                   .workspace_bytes = kernels::BatchNormWorkspaceBytes(shape)};
  plan.prepare = Call([shape, epsilon = Epsilon(n)](const NodeMemory& m) {
    kernels::BatchNormInference(Output(m), Input(m, 0), Input(m, 1), Input(m, 2), Input(m, 3),
                                OptionalInput(m, 4), epsilon, shape, m.workspace);
  });
  return plan;
}

template <Activation kActivation>
PlannedNode PlanBatchNormGrad(const CpuNode& n) {
  const Layout layout = n.layouts[1];  // x's layout, which the forward kernel kept
  const kernels::BatchNormShape shape = SynchronisedShapeOf(n, n.inputs[1], layout);
  PlannedNode plan{.input_layouts = {layout, layout},
                   .output_layouts = {layout},
                   .overwritable = {0, 1},
                   .shape_only = {5},
                   .workspace_bytes = kernels::BatchNormWorkspaceBytes(shape)};
  plan.prepare = Call([shape](const NodeMemory& m, const RunNumbers& r) {
    return BatchNormGrad({.dx = Output(m), .dbias = Output(m, 1), .dgain = OptionalOutput(m, 2)},
                         Input(m, 0), Input(m, 1), Input(m, 2), Input(m, 3), Input(m, 4),
                         OptionalInput(m, 6), shape, kActivation, m.workspace, r);
  });
  return plan;
}

// Inputs: x, addend, running_mean, running_variance, bias, gain?.
PlannedNode PlanBatchNormAddRelu(const CpuNode& n) {
  const Layout layout = n.layouts[0];
  const kernels::BatchNormShape shape = SynchronisedShapeOf(n, n.inputs[0], layout);
  PlannedNode plan{.input_layouts = {layout, layout},
                   .output_layouts = {layout},
                   .overwritable = {0},
                   .shape_only = {2, 3},
                   .workspace_bytes = kernels::BatchNormWorkspaceBytes(shape),
                   .state_bytes = {shape.state_floats() * int64_t{sizeof(float)}}};
  plan.prepare =
      Call([shape, epsilon = Epsilon(n), places = n.layout_table.Places(n.inputs[0], layout)](
               const NodeMemory& m, const RunNumbers& r) -> absl::Status {
        RETURN_IF_ERROR(BatchNorm({.y = Output(m),
                                   .mean = Output(m, 1),
                                   .rstd = Output(m, 2),
                                   .variance = Output(m, 3),
                                   .state = Output(m, 4)},
                                  Input(m, 0), Input(m, 4), OptionalInput(m, 5), epsilon, shape,
                                  Activation::kNone, m.workspace, r));
        const std::array<const float*, 2> terms = {Output(m), Input(m, 1)};
        kernels::Accumulate(Output(m), terms, places);
        kernels::Relu(Output(m), Output(m), places);
        return absl::OkStatus();
      });
  return plan;
}

// Inputs: dy, with kTwo dy_second, y, x, mean, rstd, state, bias, gain?. Outputs: dx, daddend,
// dbias, dgain?.
template <bool kTwo>
PlannedNode PlanBatchNormAddReluGrad(const CpuNode& n) {
  constexpr int kY = kTwo ? 2 : 1, kX = kY + 1;
  const Layout layout = n.layouts[kX];
  const kernels::BatchNormShape shape = SynchronisedShapeOf(n, n.inputs[kX], layout);
  PlannedNode plan{.input_layouts = std::vector<Layout>(kX + 1, layout),
                   .output_layouts = {layout, layout},
                   .overwritable = {0, kX},
                   .shape_only = {kX + 4},
                   .workspace_bytes = kernels::BatchNormWorkspaceBytes(shape)};
  plan.prepare = Call([shape, places = n.layout_table.Places(n.inputs[kX], layout)](
                          const NodeMemory& m, const RunNumbers& r) {
    const float* dy = Input(m, 0);
    if constexpr (kTwo) {
      const std::array<const float*, 2> terms = {dy, Input(m, 1)};
      kernels::Accumulate(Output(m, 1), terms, places);
      dy = Output(m, 1);
    }
    kernels::ReluGrad(Output(m, 1), dy, Input(m, kY), places);
    return BatchNormGrad({.dx = Output(m), .dbias = Output(m, 2), .dgain = OptionalOutput(m, 3)},
                         Output(m, 1), Input(m, kX), Input(m, kX + 1), Input(m, kX + 2),
                         Input(m, kX + 3), OptionalInput(m, kX + 5), shape, Activation::kNone,
                         m.workspace, r);
  });
  return plan;
}

// Plans this run's contribution to a statistic. It carries the loss scale, because every gradient
// inside a run does.
PlannedNode PlanStatisticGrad(const CpuNode& n) {
  return {.overwritable = {0},
          .prepare = Call([size = n.elements(0)](const NodeMemory& m, const RunNumbers& numbers) {
            const double share = double(numbers.samples) / double(numbers.batch);
            kernels::Scale(Output(m), Input(m, 0), static_cast<float>(numbers.loss_scale * share),
                           size);
          })};
}

// --- LayerNorm and RmsNorm ----------------------------------------------------------------------

kernels::LayerNormShape LayerNormShapeOf(const CpuNode& n, int input) {
  return {.rows = n.rows(input), .channels = n.columns(input)};
}

PlannedNode PlanLayerNorm(const CpuNode& n) {
  return {
      .overwritable = {0},
      .prepare = Call([shape = LayerNormShapeOf(n, 0), epsilon = Epsilon(n)](const NodeMemory& m) {
        kernels::LayerNorm(Output(m), Output(m, 1), Output(m, 2), Input(m, 0), Input(m, 1),
                           OptionalInput(m, 2), epsilon, shape);
      })};
}

// Plans AddLayerNorm in f32. CpuKernels::PlanNarrowAddLayerNorm() plans it if the sum is stored in
// 16 bits.
PlannedNode PlanAddLayerNorm(const CpuNode& n) {
  return {
      .prepare = Call([shape = LayerNormShapeOf(n, 0), epsilon = Epsilon(n)](const NodeMemory& m) {
        kernels::AddLayerNorm(Output(m), Output(m, 1), Output(m, 2), Output(m, 3), Input(m, 0),
                              Input(m, 1), Input(m, 2), OptionalInput(m, 3), epsilon, shape);
      })};
}

PlannedNode PlanLayerNormGradInput(const CpuNode& n) {
  return {.overwritable = {0, 1},
          .prepare = Call([shape = LayerNormShapeOf(n, 0)](const NodeMemory& m) {
            kernels::LayerNormGradInput(Output(m), Input(m, 0), Input(m, 1), Input(m, 2),
                                        Input(m, 3), Input(m, 4), shape);
          })};
}

PlannedNode PlanLayerNormGradParameters(const CpuNode& n) {
  return {.shape_only = {4, 5},
          .prepare = Call([shape = LayerNormShapeOf(n, 0)](const NodeMemory& m) {
            kernels::LayerNormGradParameters(Output(m), OptionalOutput(m, 1), Input(m, 0),
                                             Input(m, 1), Input(m, 2), Input(m, 3), shape);
          })};
}

// Inputs: dy, dsum, sum, gain, mean, rstd, bias?. The parameters' gradients are computed first,
// because dx may share memory with dy or the sum.
PlannedNode PlanAddLayerNormGrad(const CpuNode& n) {
  PlannedNode plan{.overwritable = {0, 2}, .shape_only = {6}};
  plan.prepare =
      Call([shape = LayerNormShapeOf(n, 0), elements = n.elements(0)](const NodeMemory& m) {
        kernels::LayerNormGradParameters(Output(m, 1), OptionalOutput(m, 2), Input(m, 0),
                                         Input(m, 2), Input(m, 4), Input(m, 5), shape);
        kernels::LayerNormGradInput(Output(m), Input(m, 0), Input(m, 2), Input(m, 3), Input(m, 4),
                                    Input(m, 5), shape);
        const std::array<const float*, 2> terms = {Output(m), Input(m, 1)};
        kernels::Accumulate(Output(m), terms, elements);
      });
  return plan;
}

// Inputs: dy, dy_second, sum, gain, mean, rstd, bias?. The sum of both gradients is stored in the
// memory of dx.
PlannedNode PlanAccumulateLayerNormGrad(const CpuNode& n) {
  PlannedNode plan{.overwritable = {0, 1}, .shape_only = {6}};
  plan.prepare =
      Call([shape = LayerNormShapeOf(n, 0), elements = n.elements(0)](const NodeMemory& m) {
        const std::array<const float*, 2> terms = {Input(m, 0), Input(m, 1)};
        kernels::Accumulate(Output(m), terms, elements);
        kernels::LayerNormGradParameters(Output(m, 1), OptionalOutput(m, 2), Output(m), Input(m, 2),
                                         Input(m, 4), Input(m, 5), shape);
        kernels::LayerNormGradInput(Output(m), Output(m), Input(m, 2), Input(m, 3), Input(m, 4),
                                    Input(m, 5), shape);
      });
  return plan;
}

kernels::RmsNormShape RmsNormShapeOf(const CpuNode& n) {
  return {.rows = n.rows(0), .channels = n.columns(0)};
}

PlannedNode PlanRmsNorm(const CpuNode& n) {
  return {.overwritable = {0},
          .prepare = Call([shape = RmsNormShapeOf(n), epsilon = Epsilon(n)](const NodeMemory& m) {
            kernels::RmsNorm(Output(m), Output(m, 1), Input(m, 0), Input(m, 1), epsilon, shape);
          })};
}

PlannedNode PlanRmsNormGradInput(const CpuNode& n) {
  return {.overwritable = {0, 1}, .prepare = Call([shape = RmsNormShapeOf(n)](const NodeMemory& m) {
                                    kernels::RmsNormGradInput(Output(m), Input(m, 0), Input(m, 1),
                                                              Input(m, 2), Input(m, 3), shape);
                                  })};
}

PlannedNode PlanRmsNormGradGain(const CpuNode& n) {
  return {.prepare = Call([shape = RmsNormShapeOf(n)](const NodeMemory& m) {
            kernels::RmsNormGradGain(Output(m), Input(m, 0), Input(m, 1), Input(m, 2), shape);
          })};
}

// --- GroupNorm ----------------------------------------------------------------------------------

kernels::GroupNormShape GroupNormShapeOf(const CpuNode& n) {
  const TensorType& x = n.inputs[0];  // or dy, which has the same shape
  return {.batch = x.shape[0],
          .channels = x.shape[1],
          .positions = x.elements() / x.shape[0] / x.shape[1],
          .groups = IntegerAttribute(*n.node, "groups")};
}

PlannedNode PlanGroupNorm(const CpuNode& n) {
  return {.overwritable = {0},
          .prepare = Call([shape = GroupNormShapeOf(n), epsilon = Epsilon(n)](const NodeMemory& m) {
            kernels::GroupNorm(Output(m), Output(m, 1), Output(m, 2), Input(m, 0), Input(m, 1),
                               Input(m, 2), epsilon, shape);
          })};
}

PlannedNode PlanGroupNormGradInput(const CpuNode& n) {
  return {.overwritable = {0, 1},
          .prepare = Call([shape = GroupNormShapeOf(n)](const NodeMemory& m) {
            kernels::GroupNormGradInput(Output(m), Input(m, 0), Input(m, 1), Input(m, 2),
                                        Input(m, 3), Input(m, 4), shape);
          })};
}

PlannedNode PlanGroupNormGradParameters(const CpuNode& n) {
  return {.prepare = Call([shape = GroupNormShapeOf(n)](const NodeMemory& m) {
            kernels::GroupNormGradParameters(Output(m), Output(m, 1), Input(m, 0), Input(m, 1),
                                             Input(m, 2), Input(m, 3), shape);
          })};
}

}  // namespace

void AddNormalisationKernels(CpuKernelTable& table) {
  table["BatchNorm"] = {PlanBatchNorm<Activation::kNone>};
  table["BatchNormRelu"] = {PlanBatchNorm<Activation::kRelu>};
  table["BatchNormInference"] = {PlanBatchNormInference};
  table["BatchNormGrad"] = {PlanBatchNormGrad<Activation::kNone>};
  table["BatchNormReluGrad"] = {PlanBatchNormGrad<Activation::kRelu>};
  table["BatchNormAddRelu"] = {PlanBatchNormAddRelu};
  table["BatchNormAddReluGrad"] = {PlanBatchNormAddReluGrad<false>};
  table["AccumulateBatchNormAddReluGrad"] = {PlanBatchNormAddReluGrad<true>};
  table["StatisticGrad"] = {PlanStatisticGrad};
  table["LayerNorm"] = {PlanLayerNorm};
  table["AddLayerNorm"] = {PlanAddLayerNorm};
  table["LayerNormGradInput"] = {PlanLayerNormGradInput};
  table["AddLayerNormGrad"] = {PlanAddLayerNormGrad};
  table["AccumulateLayerNormGrad"] = {PlanAccumulateLayerNormGrad};
  table["LayerNormGradParameters"] = {PlanLayerNormGradParameters};
  table["RmsNorm"] = {PlanRmsNorm};
  table["RmsNormGradInput"] = {PlanRmsNormGradInput};
  table["RmsNormGradGain"] = {PlanRmsNormGradGain};
  table["GroupNorm"] = {PlanGroupNorm};
  table["GroupNormGradInput"] = {PlanGroupNormGradInput};
  table["GroupNormGradParameters"] = {PlanGroupNormGradParameters};
}

}  // namespace muster
