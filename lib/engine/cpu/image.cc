// Convolution and pooling. Each op names the layouts it is fastest on. The ops that follow a
// convolution keep its layout.
#include <memory>

#include "kernels/convolution.h"
#include "kernels/pooling.h"
#include "lib/engine/cpu/binding.h"
#include "lib/graph/attributes.h"

namespace muster {
namespace {

std::array<int64_t, 4> PaddingOf(const Window& window) {
  return {window.padding_before[0], window.padding_before[1], window.padding_after[0],
          window.padding_after[1]};
}

kernels::Conv2dShape Conv2dShapeOf(const CpuNode& n, const TensorType& x, const TensorType& w) {
  const Window window = ConvolutionWindow(*n.node, w.shape);
  return {.batch = x.shape[0],
          .channels = x.shape[1],
          .height = x.shape[2],
          .width = x.shape[3],
          .outputs = w.shape[0],
          .kernel = window.kernel,
          .strides = window.strides,
          .padding = PaddingOf(window),
          .dilations = window.dilations,
          .groups = IntegerAttribute(*n.node, "groups")};
}

// Returns a plan with the kernel's layouts for the image input and output; the other inputs are
// plain.
PlannedNode ImagePlan(const CpuNode& n, const kernels::Layout& x, const kernels::Layout& y) {
  PlannedNode plan{.output_layouts = {n.layout_table.Number(y)}};
  plan.input_layouts.resize(n.inputs.size());
  plan.input_layouts[0] = n.layout_table.Number(x);
  plan.output_layouts.resize(n.outputs.size());
  return plan;
}

template <kernels::Conv2dEpilogue kEpilogue>
PlannedNode PlanConv2d(const CpuNode& n) {
  auto conv = std::make_shared<kernels::Conv2d>(
      Conv2dShapeOf(n, n.inputs[0], n.inputs[1]),
      kernels::Conv2d::Options{.bias = n.inputs.size() > 2, .epilogue = kEpilogue});
  PlannedNode plan = ImagePlan(n, conv->x_layout(), conv->y_layout());
  plan.workspace_bytes = conv->workspace_bytes();
  plan.prepare = Call([conv](const NodeMemory& m) {
    conv->Run(Output(m), Input(m, 0), Input(m, 1), OptionalInput(m, 2), m.workspace);
  });
  return plan;
}

// Inputs: x, w, running mean, running variance, bias, gain?.
PlannedNode PlanConv2dBatchNormRelu(const CpuNode& n) {
  auto conv =
      std::make_shared<kernels::Conv2dBatchNormRelu>(Conv2dShapeOf(n, n.inputs[0], n.inputs[1]));
  PlannedNode plan = ImagePlan(n, conv->x_layout(), conv->y_layout());
  plan.workspace_bytes = conv->workspace_bytes();
  plan.prepare = Call([conv, epsilon = static_cast<float>(NumberAttribute(*n.node, "epsilon"))](
                          const NodeMemory& m) {
    conv->Run(Output(m), Input(m, 0), Input(m, 1), /*bias=*/nullptr,
              {.mean = Input(m, 2),
               .variance = Input(m, 3),
               .bias = Input(m, 4),
               .gain = OptionalInput(m, 5),
               .epsilon = epsilon},
              m.workspace);
  });
  return plan;
}

PlannedNode PlanConv2dGradInput(const CpuNode& n) {
  auto conv =
      std::make_shared<kernels::Conv2dGradInput>(Conv2dShapeOf(n, n.outputs[0], n.inputs[1]));
  PlannedNode plan = ImagePlan(n, conv->dy_layout(), conv->dx_layout());
  plan.shape_only = {2};
  plan.workspace_bytes = conv->workspace_bytes();
  plan.prepare = Call(
      [conv](const NodeMemory& m) { conv->Run(Output(m), Input(m, 0), Input(m, 1), m.workspace); });
  return plan;
}

// Inputs: x, w, bias?. Output: y. Computes the convolution from y to x backwards.
PlannedNode PlanConvTranspose2d(const CpuNode& n) {
  const std::vector<int64_t>& y = n.outputs[0].shape;
  auto conv =
      std::make_shared<kernels::Conv2dGradInput>(Conv2dShapeOf(n, n.outputs[0], n.inputs[1]));
  PlannedNode plan = ImagePlan(n, conv->dy_layout(), conv->dx_layout());
  plan.workspace_bytes = conv->workspace_bytes();
  plan.prepare =
      Call([conv, batch = y[0], outputs = y[1], pixels = y[2] * y[3]](const NodeMemory& m) {
        conv->Run(Output(m), Input(m, 0), Input(m, 1), m.workspace);
        if (const float* bias = OptionalInput(m, 2)) {
          kernels::AddChannelBias(Output(m), bias, batch, outputs, pixels, conv->dx_layout());
        }
      });
  return plan;
}

PlannedNode PlanConv2dGradWeight(const CpuNode& n) {
  auto conv =
      std::make_shared<kernels::Conv2dGradWeight>(Conv2dShapeOf(n, n.inputs[1], n.outputs[0]));
  PlannedNode plan{.input_layouts = {n.layout_table.Number(conv->dy_layout()),
                                     n.layout_table.Number(conv->x_layout()), Layout::kPlain},
                   .shape_only = {2},
                   .workspace_bytes = conv->workspace_bytes()};
  plan.prepare = Call(
      [conv](const NodeMemory& m) { conv->Run(Output(m), Input(m, 0), Input(m, 1), m.workspace); });
  return plan;
}

PlannedNode PlanConv2dGradBias(const CpuNode& n) {
  const std::vector<int64_t>& dy = n.inputs[0].shape;
  return {.input_layouts = {n.layouts[0]},
          .prepare = Call([batch = dy[0], outputs = dy[1], pixels = dy[2] * dy[3],
                           layout = n.layout_table[n.layouts[0]]](const NodeMemory& m) {
            kernels::Conv2dGradBias(Output(m), Input(m, 0), batch, outputs, pixels, layout);
          })};
}

// --- Pooling ------------------------------------------------------------------------------------

kernels::PoolShape PoolShapeOf(const CpuNode& n, const TensorType& x, Layout layout) {
  const Window window = PoolingWindow(*n.node);
  return {.batch = x.shape[0],
          .channels = x.shape[1],
          .height = x.shape[2],
          .width = x.shape[3],
          .kernel = window.kernel,
          .strides = window.strides,
          .padding = PaddingOf(window),
          .ceil = IntegerAttribute(*n.node, "ceil") != 0,
          .layout = n.layout_table[layout],
          .dilations = window.dilations};
}

PlannedNode PlanMaxPool2d(const CpuNode& n) {
  const kernels::PoolShape shape = PoolShapeOf(n, n.inputs[0], n.layouts[0]);
  PlannedNode plan = ImagePlan(n, shape.layout, kernels::PoolOutputLayout(shape));
  plan.state_bytes = {kernels::MaxPoolStateBytes(shape)};
  plan.prepare = Call([shape](const NodeMemory& m) {
    kernels::MaxPool2d(Output(m), m.outputs[1], Input(m, 0), shape);
  });
  return plan;
}

// dx has the layout of x. The state's positions are in that layout, and the node that made x can
// read its gradient without a reorder.
PlannedNode PlanMaxPool2dGrad(const CpuNode& n) {
  const kernels::PoolShape shape = PoolShapeOf(n, n.inputs[1], n.layouts[1]);
  PlannedNode plan = ImagePlan(n, kernels::PoolOutputLayout(shape), shape.layout);
  plan.shape_only = {1, 2};
  plan.prepare = Call([shape](const NodeMemory& m) {
    kernels::MaxPool2dGrad(Output(m), Input(m, 0), m.inputs[3], shape);
  });
  return plan;
}

kernels::PoolDivisor DivisorOf(const CpuNode& n) {
  return IntegerAttribute(*n.node, "count_padding") != 0 ? kernels::PoolDivisor::kPadded
                                                         : kernels::PoolDivisor::kImage;
}

PlannedNode PlanAveragePool2d(const CpuNode& n) {
  const kernels::PoolShape shape = PoolShapeOf(n, n.inputs[0], n.layouts[0]);
  PlannedNode plan = ImagePlan(n, shape.layout, kernels::PoolOutputLayout(shape));
  plan.prepare = Call([shape, divisor = DivisorOf(n)](const NodeMemory& m) {
    kernels::AveragePool2d(Output(m), Input(m, 0), shape, divisor);
  });
  return plan;
}

PlannedNode PlanAveragePool2dGrad(const CpuNode& n) {
  const kernels::PoolShape shape = PoolShapeOf(n, n.inputs[1], n.layouts[1]);
  PlannedNode plan = ImagePlan(n, kernels::PoolOutputLayout(shape), shape.layout);
  plan.shape_only = {1};
  plan.prepare = Call([shape, divisor = DivisorOf(n)](const NodeMemory& m) {
    kernels::AveragePool2dGrad(Output(m), Input(m, 0), shape, divisor);
  });
  return plan;
}

PlannedNode PlanGlobalAveragePool2d(const CpuNode& n) {
  const std::vector<int64_t>& x = n.inputs[0].shape;
  return {.input_layouts = {n.layouts[0]},
          .prepare = Call([batch = x[0], channels = x[1], pixels = x[2] * x[3],
                           layout = n.layout_table[n.layouts[0]]](const NodeMemory& m) {
            kernels::GlobalAveragePool2d(Output(m), Input(m, 0), batch, channels, pixels, layout);
          })};
}

PlannedNode PlanGlobalAveragePool2dGrad(const CpuNode& n) {
  const std::vector<int64_t>& x = n.inputs[1].shape;
  return {.output_layouts = {n.layouts[1]},
          .shape_only = {1},
          .prepare = Call([batch = x[0], channels = x[1], pixels = x[2] * x[3],
                           layout = n.layout_table[n.layouts[1]]](const NodeMemory& m) {
            kernels::GlobalAveragePool2dGrad(Output(m), Input(m, 0), batch, channels, pixels,
                                             layout);
          })};
}

}  // namespace

void AddImageKernels(CpuKernelTable& table) {
  table["Conv2d"] = {PlanConv2d<kernels::Conv2dEpilogue::kNone>};
  table["Conv2dRelu"] = {PlanConv2d<kernels::Conv2dEpilogue::kRelu>};
  table["Conv2dBatchNormRelu"] = {PlanConv2dBatchNormRelu};
  table["Conv2dGradInput"] = {PlanConv2dGradInput};
  table["Conv2dGradWeight"] = {PlanConv2dGradWeight};
  table["Conv2dGradBias"] = {PlanConv2dGradBias};
  table["ConvTranspose2d"] = {PlanConvTranspose2d};
  table["MaxPool2d"] = {PlanMaxPool2d};
  table["MaxPool2dGrad"] = {PlanMaxPool2dGrad};
  table["AveragePool2d"] = {PlanAveragePool2d};
  table["AveragePool2dGrad"] = {PlanAveragePool2dGrad};
  table["GlobalAveragePool2d"] = {PlanGlobalAveragePool2d};
  table["GlobalAveragePool2dGrad"] = {PlanGlobalAveragePool2dGrad};
}

}  // namespace muster
