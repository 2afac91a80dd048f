// Convolution and pooling. A convolution chooses the layout, what follows keeps it.
#include <memory>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/convolution.h"
#include "kernels/cuda/convolution_choice.h"
#include "kernels/cuda/movement.h"
#include "kernels/cuda/pooling.h"
#include "kernels/cuda/reduction.h"
#include "lib/engine/cuda/binding.h"
#include "lib/graph/attributes.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using Shape = std::vector<int64_t>;

cuda::ChannelOrder OrderOf(Layout layout) {
  return layout == kChannelsLast ? cuda::ChannelOrder::kLast : cuda::ChannelOrder::kFirst;
}

// cuDNN pads both sides alike; where the node does not, the image is copied into a padded one.
struct Border {
  bool is_copied = false;
  Shape inside;      // of the image, as it lies in memory
  Shape padded;      // likewise
  cuda::View place;  // of the image in the padded one
  int64_t padded_bytes = 0;

  int64_t workspace_bytes() const { return is_copied ? Aligned(padded_bytes) : 0; }
};

struct ConvolutionPlan {
  cuda::ConvolutionShape shape;
  Border border;
};

ConvolutionPlan DescribeConvolution(const CudaNode& node, const Shape& x, const Shape& w,
                                    const Shape& y, Layout layout) {
  const Window window = ConvolutionWindow(*node.node, w);
  ConvolutionPlan plan{.shape = {.batch = x[0],
                                 .channels = x[1],
                                 .image = {x[2], x[3]},
                                 .outputs = y[1],
                                 .output = {y[2], y[3]},
                                 .kernel = window.kernel,
                                 .strides = window.strides,
                                 .padding = window.padding_before,
                                 .dilations = window.dilations,
                                 .groups = IntegerAttribute(*node.node, "groups"),
                                 .order = OrderOf(layout),
                                 .type = node.type(0)}};
  if (window.padding_before == window.padding_after) return plan;
  Border& border = plan.border;
  border.is_copied = true;
  border.inside = border.padded = ShapeInMemory(x, layout);
  const int axes[] = {AxisInMemory(2, layout), AxisInMemory(3, layout)};
  for (int d = 0; d < 2; ++d) {
    border.padded[axes[d]] += window.padding_before[d] + window.padding_after[d];
    plan.shape.image[d] = border.padded[axes[d]];
  }
  plan.shape.padding = {0, 0};
  border.place.strides = cuda::RowMajorStrides(border.padded);
  for (int d = 0; d < 2; ++d) {
    border.place.offset += window.padding_before[d] * border.place.strides[axes[d]];
  }
  border.padded_bytes = border.place.strides[0] * border.padded[0] * cuda::Bytes(plan.shape.type);
  return plan;
}

int ElementBytes(const ConvolutionPlan& plan) {
  return static_cast<int>(cuda::Bytes(plan.shape.type));
}

cudaError_t CopyInside(std::byte* padded, const std::byte* x, const ConvolutionPlan& plan,
                       cudaStream_t stream) {
  const Border& border = plan.border;
  const cudaError_t error =
      cudaMemsetAsync(padded, 0, static_cast<size_t>(border.padded_bytes), stream);
  if (error != cudaSuccess) return error;
  return cuda::CopyBox(padded, border.place, x, {0, cuda::RowMajorStrides(border.inside)},
                       border.inside, ElementBytes(plan), stream);
}

cudaError_t CopyOutside(std::byte* dx, const std::byte* padded, const ConvolutionPlan& plan,
                        cudaStream_t stream) {
  const Border& border = plan.border;
  return cuda::CopyBox(dx, {0, cuda::RowMajorStrides(border.inside)}, padded, border.place,
                       border.inside, ElementBytes(plan), stream);
}

// A convolution in the layout that it is fastest in, or else in the one that the library has it
// for.
struct PreparedConvolution {
  ConvolutionPlan plan;
  Layout layout;
  std::shared_ptr<cuda::Convolution> convolution;

  int64_t library_bytes() const { return Aligned(convolution->workspace_bytes()); }
  int64_t workspace_bytes() const {
    return library_bytes() + plan.border.workspace_bytes() + kWorkspaceAlignment;
  }
};

absl::StatusOr<PreparedConvolution> Prepare(const CudaNode& node, cuda::ConvolutionPart part,
                                            const Shape& x, const Shape& w, const Shape& y) {
  const cuda::ConvolutionOptions options = {.tf32 = node.context.tf32,
                                            .deterministic = node.context.deterministic};
  if (node.type(0) == cuda::Type::kF32) {
    LOG_FIRST_N(INFO, 1) << cuda::DescribeAdmission({.type = node.type(0),
                                                     .tf32 = options.tf32,
                                                     .deterministic = options.deterministic});
  }
  // Tensor cores want channels last; kernels without them are made for channels first.
  const bool uses_tensor_cores = node.type(0) != cuda::Type::kF32 || options.tf32;
  std::string failures;
  for (Layout layout : {uses_tensor_cores ? kChannelsLast : Layout::kPlain,
                        uses_tensor_cores ? Layout::kPlain : kChannelsLast}) {
    const ConvolutionPlan plan = DescribeConvolution(node, x, w, y, layout);
    std::unique_ptr<cuda::Convolution> convolution;
    const cuda::Failure failure =
        cuda::Convolution::Create(node.context.cudnn, part, plan.shape, options, convolution);
    if (failure == nullptr) return PreparedConvolution{plan, layout, std::move(convolution)};
    absl::StrAppend(&failures, "; ", plan.shape.ToString(), ": ", failure);
  }
  return absl::InvalidArgumentError(absl::StrCat("cuDNN has no such convolution", failures));
}

// Where the convolution's operands lie: workspace of the library, then the padded image.
struct ConvolutionMemory {
  std::byte* to;
  std::byte* left;
  std::byte* right;
  std::byte* library;
};

void Choose(const std::string& name, const CudaContext& context, cuda::Convolution& convolution,
            const ConvolutionMemory& m) {
  if (cuda::Failure failure = convolution.Choose(m.to, m.left, m.right, m.library)) {
    LOG(WARNING) << name << ": " << failure << "; using the library's first algorithm";
  }
  LOG_IF(INFO, !context.deterministic || VLOG_IS_ON(1))
      << "convolution " << name << ": " << convolution.choice();
}

// What is done to y behind the convolution.
using Finish = std::function<cudaError_t(const NodeMemory& m, std::byte* workspace)>;

// x, w, ... -> y.
PlannedNode PlanForward(const CudaNode& node, const PreparedConvolution& prepared,
                        int64_t finish_bytes, Finish finish) {
  PlannedNode planned{
      .output_layouts = {prepared.layout},
      .workspace_bytes = prepared.workspace_bytes() + finish_bytes,
      .prepare = [=, name = node.node->name(), &context = node.context,
                  stream = node.context.stream](const NodeMemory& m) -> NodeRun {
        const ConvolutionPlan& plan = prepared.plan;
        std::byte* workspace = Align(m.workspace);
        std::byte* padded = workspace + prepared.library_bytes();
        const ConvolutionMemory memory = {
            m.outputs[0], plan.border.is_copied ? padded : m.inputs[0], m.inputs[1], workspace};
        Choose(name, context, *prepared.convolution, memory);
        return [=](const RunNumbers&) -> absl::Status {
          const ConvolutionPlan& plan = prepared.plan;
          if (plan.border.is_copied) {
            RETURN_IF_ERROR(StatusOf(CopyInside(padded, m.inputs[0], plan, stream)));
          }
          RETURN_IF_ERROR(StatusOf(
              prepared.convolution->Run(memory.to, memory.left, memory.right, memory.library)));
          return StatusOf(finish(m, padded + plan.border.workspace_bytes()));
        };
      }};
  planned.input_layouts.resize(node.inputs.size());
  planned.input_layouts[0] = planned.input_layouts[1] = prepared.layout;
  return planned;
}

absl::StatusOr<PreparedConvolution> PrepareForward(const CudaNode& node) {
  return Prepare(node, cuda::ConvolutionPart::kForward, node.shape(0), node.shape(1),
                 node.outputs[0].shape);
}

cuda::BatchNormShape ChannelsOf(const Shape& y, Layout layout, cuda::Type type,
                                cuda::BatchNormActivation activation) {
  return {.batch = y[0],
          .channels = y[1],
          .pixels = y[2] * y[3],
          .order = OrderOf(layout),
          .type = type,
          .activation = activation};
}

template <cuda::BatchNormActivation activation>
absl::StatusOr<PlannedNode> PlanConv2d(const CudaNode& node) {
  ASSIGN_OR_RETURN(const PreparedConvolution prepared, PrepareForward(node));
  const cuda::BatchNormShape shape =
      ChannelsOf(node.outputs[0].shape, prepared.layout, node.type(0), activation);
  const bool has_bias = node.inputs.size() > 2;
  return PlanForward(node, prepared, cuda::BatchNormStateBytes(shape),
                     [=, n = node.outputs[0].elements(), stream = node.context.stream](
                         const NodeMemory& m, std::byte* workspace) {
                       std::byte* y = m.outputs[0];
                       if (has_bias)
                         return cuda::AddChannelBias(y, y, m.inputs[2], shape, workspace, stream);
                       if (activation == cuda::BatchNormActivation::kNone) return cudaSuccess;
                       return cuda::Apply(cuda::Function::kRelu, y, y, n, shape.type, stream);
                     });
}

// x, w, running mean, running variance, bias, gain?
absl::StatusOr<PlannedNode> PlanConv2dBatchNormRelu(const CudaNode& node) {
  ASSIGN_OR_RETURN(const PreparedConvolution prepared, PrepareForward(node));
  const cuda::BatchNormShape shape = ChannelsOf(node.outputs[0].shape, prepared.layout,
                                                node.type(0), cuda::BatchNormActivation::kRelu);
  return PlanForward(node, prepared, cuda::BatchNormStateBytes(shape),
                     [=, epsilon = static_cast<float>(NumberAttribute(*node.node, "epsilon")),
                      stream = node.context.stream](const NodeMemory& m, std::byte* workspace) {
                       return cuda::BatchNormInference(
                           m.outputs[0], m.outputs[0], Floats(m.inputs[2]), Floats(m.inputs[3]),
                           m.inputs[4], OptionalInput(m, 5), epsilon, shape, workspace, stream);
                     });
}

// Of dy, w, x (shape).
absl::StatusOr<PlannedNode> PlanConv2dGradInput(const CudaNode& node) {
  ASSIGN_OR_RETURN(const PreparedConvolution prepared,
                   Prepare(node, cuda::ConvolutionPart::kGradInput, node.outputs[0].shape,
                           node.shape(1), node.shape(0)));
  return PlannedNode{
      .input_layouts = {prepared.layout, prepared.layout, Layout::kPlain},
      .output_layouts = {prepared.layout},
      .shape_only = {2},
      .workspace_bytes = prepared.workspace_bytes(),
      .prepare = [=, name = node.node->name(), &context = node.context,
                  stream = node.context.stream](const NodeMemory& m) -> NodeRun {
        std::byte* workspace = Align(m.workspace);
        std::byte* padded = workspace + prepared.library_bytes();
        const ConvolutionMemory memory = {prepared.plan.border.is_copied ? padded : m.outputs[0],
                                          m.inputs[0], m.inputs[1], workspace};
        Choose(name, context, *prepared.convolution, memory);
        return [=](const RunNumbers&) -> absl::Status {
          RETURN_IF_ERROR(StatusOf(
              prepared.convolution->Run(memory.to, memory.left, memory.right, memory.library)));
          if (!prepared.plan.border.is_copied) return absl::OkStatus();
          return StatusOf(CopyOutside(m.outputs[0], padded, prepared.plan, stream));
        };
      }};
}

// Of dy, x, w (shape).
absl::StatusOr<PlannedNode> PlanConv2dGradWeight(const CudaNode& node) {
  ASSIGN_OR_RETURN(const PreparedConvolution prepared,
                   Prepare(node, cuda::ConvolutionPart::kGradWeight, node.shape(1),
                           node.outputs[0].shape, node.shape(0)));
  return PlannedNode{
      .input_layouts = {prepared.layout, prepared.layout, Layout::kPlain},
      .output_layouts = {prepared.layout},
      .shape_only = {2},
      .workspace_bytes = prepared.workspace_bytes(),
      .prepare = [=, name = node.node->name(), &context = node.context,
                  stream = node.context.stream](const NodeMemory& m) -> NodeRun {
        std::byte* workspace = Align(m.workspace);
        std::byte* padded = workspace + prepared.library_bytes();
        const bool is_copied = prepared.plan.border.is_copied;
        const ConvolutionMemory memory = {m.outputs[0], m.inputs[0],
                                          is_copied ? padded : m.inputs[1], workspace};
        Choose(name, context, *prepared.convolution, memory);
        return [=](const RunNumbers&) -> absl::Status {
          if (is_copied) {
            RETURN_IF_ERROR(StatusOf(CopyInside(padded, m.inputs[1], prepared.plan, stream)));
          }
          return StatusOf(
              prepared.convolution->Run(memory.to, memory.left, memory.right, memory.library));
        };
      }};
}

absl::StatusOr<PlannedNode> PlanConv2dGradBias(const CudaNode& node) {
  const cuda::BatchNormShape shape =
      ChannelsOf(node.shape(0), node.layouts[0], node.type(0), cuda::BatchNormActivation::kNone);
  return PlannedNode{.input_layouts = {node.layouts[0]},
                     .workspace_bytes = cuda::BatchNormWorkspaceBytes(shape),
                     .prepare = Enqueue([shape, stream = node.context.stream](const NodeMemory& m) {
                       return cuda::SumChannelBias(m.outputs[0], m.inputs[0], shape, m.workspace,
                                                   stream);
                     })};
}

// --- Pooling ------------------------------------------------------------------------------------

cuda::PoolShape PoolShapeOf(const CudaNode& node, const Shape& x, const Shape& y, Layout layout) {
  const Window window = PoolingWindow(*node.node);
  return {.batch = x[0],
          .channels = x[1],
          .image = {x[2], x[3]},
          .output = {y[2], y[3]},
          .kernel = window.kernel,
          .strides = window.strides,
          .padding = {window.padding_before[0], window.padding_before[1], window.padding_after[0],
                      window.padding_after[1]},
          .order = OrderOf(layout),
          .type = node.type(0)};
}

absl::StatusOr<PlannedNode> PlanMaxPool2d(const CudaNode& node) {
  const Layout layout = node.layouts[0];
  const cuda::PoolShape shape = PoolShapeOf(node, node.shape(0), node.outputs[0].shape, layout);
  return PlannedNode{.input_layouts = {layout},
                     .output_layouts = {layout, Layout::kPlain},
                     .state_bytes = {node.outputs[0].elements() * int64_t{sizeof(int32_t)}},
                     .prepare = Enqueue([shape, stream = node.context.stream](const NodeMemory& m) {
                       return cuda::MaxPool2d(m.outputs[0],
                                              reinterpret_cast<int32_t*>(m.outputs[1]), m.inputs[0],
                                              shape, stream);
                     })};
}

// Of dy, x (layout), y (shape), state: in the order that the forward kernel found x in.
absl::StatusOr<PlannedNode> PlanMaxPool2dGrad(const CudaNode& node) {
  const Layout layout = node.layouts[1];
  const cuda::PoolShape shape = PoolShapeOf(node, node.outputs[0].shape, node.shape(0), layout);
  return PlannedNode{.input_layouts = {layout, Layout::kPlain, Layout::kPlain, Layout::kPlain},
                     .output_layouts = {layout},
                     .shape_only = {1, 2},
                     .prepare = Enqueue([shape, stream = node.context.stream](const NodeMemory& m) {
                       return cuda::MaxPool2dGrad(m.outputs[0], m.inputs[0], Ids(m.inputs[3]),
                                                  shape, stream);
                     })};
}

absl::StatusOr<PlannedNode> PlanAveragePool2d(const CudaNode& node) {
  const Layout layout = node.layouts[0];
  cuda::PoolShape shape = PoolShapeOf(node, node.shape(0), node.outputs[0].shape, layout);
  shape.count_padding = IntegerAttribute(*node.node, "count_padding") != 0;
  return PlannedNode{.input_layouts = {layout},
                     .output_layouts = {layout},
                     .prepare = Enqueue([shape, stream = node.context.stream](const NodeMemory& m) {
                       return cuda::AveragePool2d(m.outputs[0], m.inputs[0], shape, stream);
                     })};
}

absl::StatusOr<PlannedNode> PlanAveragePool2dGrad(const CudaNode& node) {
  const Layout layout = node.layouts[1];
  cuda::PoolShape shape = PoolShapeOf(node, node.outputs[0].shape, node.shape(0), layout);
  shape.count_padding = IntegerAttribute(*node.node, "count_padding") != 0;
  return PlannedNode{.input_layouts = {layout, Layout::kPlain},
                     .output_layouts = {layout},
                     .shape_only = {1},
                     .prepare = Enqueue([shape, stream = node.context.stream](const NodeMemory& m) {
                       return cuda::AveragePool2dGrad(m.outputs[0], m.inputs[0], shape, stream);
                     })};
}

// The pixels of an image as the dimensions of a reduction.
cuda::ReductionShape PixelsOf(const Shape& x, Layout layout) {
  cuda::ReductionShape shape{ShapeInMemory(x, layout), std::vector<bool>(4)};
  shape.reduced[AxisInMemory(2, layout)] = shape.reduced[AxisInMemory(3, layout)] = true;
  return shape;
}

absl::StatusOr<PlannedNode> PlanGlobalAveragePool2d(const CudaNode& node) {
  const cuda::ReductionShape shape = PixelsOf(node.shape(0), node.layouts[0]);
  return PlannedNode{.input_layouts = {node.layouts[0]},
                     .workspace_bytes = cuda::ReductionWorkspaceBytes(shape),
                     .prepare = Enqueue([shape, type = node.type(0),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::Sum(m.outputs[0], type, m.inputs[0], type,
                                        1 / static_cast<float>(shape.reductions()), shape,
                                        m.workspace, stream);
                     })};
}

absl::StatusOr<PlannedNode> PlanGlobalAveragePool2dGrad(const CudaNode& node) {
  const Layout layout = node.layouts[1];
  const cuda::ReductionShape shape = PixelsOf(node.outputs[0].shape, layout);
  return PlannedNode{
      .output_layouts = {layout},
      .shape_only = {1},
      .prepare =
          Enqueue([shape, type = node.type(0), stream = node.context.stream](const NodeMemory& m) {
            return cuda::Spread(m.outputs[0], m.inputs[0], type,
                                1 / static_cast<float>(shape.reductions()), shape, stream);
          })};
}

}  // namespace

void AddImageKernels(CudaKernelTable& table) {
  table["Conv2d"] = PlanConv2d<cuda::BatchNormActivation::kNone>;
  table["Conv2dRelu"] = PlanConv2d<cuda::BatchNormActivation::kRelu>;
  table["Conv2dBatchNormRelu"] = PlanConv2dBatchNormRelu;
  table["Conv2dGradInput"] = PlanConv2dGradInput;
  table["Conv2dGradWeight"] = PlanConv2dGradWeight;
  table["Conv2dGradBias"] = PlanConv2dGradBias;
  table["MaxPool2d"] = PlanMaxPool2d;
  table["MaxPool2dGrad"] = PlanMaxPool2dGrad;
  table["AveragePool2d"] = PlanAveragePool2d;
  table["AveragePool2dGrad"] = PlanAveragePool2dGrad;
  table["GlobalAveragePool2d"] = PlanGlobalAveragePool2d;
  table["GlobalAveragePool2dGrad"] = PlanGlobalAveragePool2dGrad;
}

}  // namespace muster
