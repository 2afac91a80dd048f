// Convolution and pooling. A convolution chooses the layout; the ops that follow keep it.
#include <memory>
#include <optional>
#include <string>
#include <utility>

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

// The padding of a convolution. cuDNN pads both sides equally. If the node does not, the image is
// copied into a padded one first.
struct Border {
  bool is_copied = false;
  Shape inside;      // the image, as stored in memory
  Shape padded;      // the padded image, as stored in memory
  cuda::View place;  // the image's place in the padded one
  int64_t padded_bytes = 0;

  int64_t workspace_bytes() const { return is_copied ? Aligned(padded_bytes) : 0; }
};

struct ConvolutionPlan {
  cuda::ConvolutionShape shape;
  Border border;
};

ConvolutionPlan DescribeConvolution(const CudaNode& node, const Shape& x, const Shape& w,
                                    const Shape& y, Layout layout, cuda::Type type) {
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
                                 .type = type}};
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

// The tensors of a convolution, or for a derivative some of them and gradients of the others.
struct ConvolutionTensors {
  std::byte* x;
  std::byte* w;
  std::byte* y;
};

// A convolution in its fastest form, or else in a form that the library supports.
struct PreparedConvolution {
  cuda::ConvolutionPart part;
  ConvolutionPlan plan;
  Layout layout;
  // Type of the node's tensors; the library may see them widened to plan.shape.type.
  cuda::Type type;
  int64_t x_elements, w_elements, y_elements;
  // The node's x and w, if the library sees them padded.
  std::optional<cuda::FewChannels> few_of_x, few_of_w;
  std::shared_ptr<cuda::Convolution> convolution;

  // The layout that x and w must have; y has `layout`.
  Layout operand_layout() const { return few_of_x ? Layout::kPlain : layout; }
  static int64_t padded_bytes(const std::optional<cuda::FewChannels>& few) {
    return few ? Aligned(few->padded_bytes()) : 0;
  }

  bool is_widened() const { return plan.shape.type != type; }
  int64_t wide_bytes(int64_t elements) const {
    return is_widened() ? Aligned(elements * cuda::Bytes(plan.shape.type)) : 0;
  }
  int64_t library_bytes() const { return Aligned(convolution->workspace_bytes()); }
  int64_t workspace_bytes() const {
    return library_bytes() + plan.border.workspace_bytes() + wide_bytes(x_elements) +
           wide_bytes(w_elements) + wide_bytes(y_elements) + padded_bytes(few_of_x) +
           padded_bytes(few_of_w) + kWorkspaceAlignment;
  }
};

int64_t Elements(const Shape& shape) {
  int64_t elements = 1;
  for (int64_t size : shape) elements *= size;
  return elements;
}

// Returns `shape` with the channels that the library sees in padded tensors.
Shape WithPaddedChannels(Shape shape) {
  shape[1] = cuda::kChannelsOfPixel;
  return shape;
}

std::optional<cuda::FewChannels> FewChannelsOf(const Shape& shape, bool is_padded) {
  if (!is_padded) return std::nullopt;
  return cuda::FewChannels{shape[0], shape[1], shape[2] * shape[3]};
}

absl::StatusOr<PreparedConvolution> Prepare(const CudaNode& node, cuda::ConvolutionPart part,
                                            const Shape& x, const Shape& w, const Shape& y) {
  const cuda::Type type = node.type(0);
  const bool tf32 = node.context.tf32, deterministic = node.context.deterministic;
  if (type == cuda::Type::kF32) {
    LOG_FIRST_N(INFO, 1) << cuda::DescribeAdmission(
        {.type = type, .tf32 = tf32, .deterministic = deterministic});
  }
  const bool has_few_channels = part != cuda::ConvolutionPart::kGradInput &&
                                x[1] < cuda::kChannelsOfPixel &&
                                IntegerAttribute(*node.node, "groups") == 1;
  std::string failures;
  for (const cuda::ConvolutionForm& form : cuda::FormsOf(type, tf32, has_few_channels)) {
    const Layout layout = form.channels_last ? kChannelsLast : Layout::kPlain;
    const ConvolutionPlan plan =
        DescribeConvolution(node, form.is_padded ? WithPaddedChannels(x) : x,
                            form.is_padded ? WithPaddedChannels(w) : w, y, layout,
                            form.is_widened ? cuda::Type::kF32 : type);
    if (form.is_padded && plan.border.is_copied) continue;  // would copy a copy
    std::unique_ptr<cuda::Convolution> convolution;
    // 16-bit values that are widened to f32 may use TF32, which keeps all of their bits.
    const cuda::Failure failure = cuda::Convolution::Create(
        node.context.cudnn, part, plan.shape,
        {.tf32 = tf32 || form.is_widened, .deterministic = deterministic}, convolution);
    if (failure == nullptr) {
      LOG_IF(INFO, form.is_widened)
          << "convolution " << node.node->name() << ": cuDNN supports it only in f32" << failures;
      return PreparedConvolution{
          .part = part,
          .plan = plan,
          .layout = layout,
          .type = type,
          .x_elements = Elements(x),
          .w_elements = Elements(w),
          .y_elements = Elements(y),
          .few_of_x = FewChannelsOf(x, form.is_padded),
          .few_of_w = FewChannelsOf(w, form.is_padded),
          .convolution = std::move(convolution),
      };
    }
    absl::StrAppend(&failures, "; ", plan.shape.ToString(), ": ", failure);
  }
  return absl::InvalidArgumentError(absl::StrCat("cuDNN has no such convolution", failures));
}

// A convolution with its tensors in memory.
class PlacedConvolution {
 public:
  PlacedConvolution(PreparedConvolution prepared, const ConvolutionTensors& tensors,
                    std::byte* workspace, cudaStream_t stream)
      : prepared_(std::move(prepared)), own_(tensors), wide_(tensors), stream_(stream) {
    std::byte* end = Align(workspace);
    const auto take = [&end](int64_t bytes) { return std::exchange(end, end + bytes); };
    scratch_ = take(prepared_.library_bytes());
    std::byte* padded = take(prepared_.plan.border.workspace_bytes());
    if (prepared_.is_widened()) {
      wide_ = {.x = take(prepared_.wide_bytes(prepared_.x_elements)),
               .w = take(prepared_.wide_bytes(prepared_.w_elements)),
               .y = take(prepared_.wide_bytes(prepared_.y_elements))};
    }
    seen_ = wide_;
    if (has_border()) seen_.x = padded;
    if (prepared_.few_of_x) {
      seen_.x = take(PreparedConvolution::padded_bytes(prepared_.few_of_x));
      seen_.w = take(PreparedConvolution::padded_bytes(prepared_.few_of_w));
    }
    end_ = end;
  }

  // The end of the memory that the convolution uses; the node's other scratch memory starts here.
  std::byte* end() const { return end_; }

  void Choose(const std::string& name, const CudaContext& context) const {
    const auto [to, left, right] = Operands();
    if (cuda::Failure failure = prepared_.convolution->Choose(to, left, right, scratch_)) {
      LOG(WARNING) << name << ": " << failure << "; using the library's first algorithm";
    }
    LOG_IF(INFO, !context.deterministic || VLOG_IS_ON(1))
        << "convolution " << name << ": " << prepared_.convolution->choice();
  }

  absl::Status Run() const {
    using enum cuda::ConvolutionPart;
    const PreparedConvolution& p = prepared_;
    if (p.part != kGradInput) {
      RETURN_IF_ERROR(Widen(wide_.x, own_.x, p.x_elements));
      if (has_border()) RETURN_IF_ERROR(StatusOf(CopyInside(seen_.x, wide_.x, p.plan, stream_)));
      RETURN_IF_ERROR(Pad(seen_.x, own_.x, p.few_of_x));
    }
    if (p.part != kGradWeight) {
      RETURN_IF_ERROR(Widen(wide_.w, own_.w, p.w_elements));
      RETURN_IF_ERROR(Pad(seen_.w, own_.w, p.few_of_w));
    }
    if (p.part != kForward) RETURN_IF_ERROR(Widen(wide_.y, own_.y, p.y_elements));
    const auto [to, left, right] = Operands();
    RETURN_IF_ERROR(StatusOf(p.convolution->Run(to, left, right, scratch_)));
    switch (p.part) {
      case kForward:
        return Round(own_.y, wide_.y, p.y_elements);
      case kGradWeight:
        if (p.few_of_w) {
          return StatusOf(cuda::TakeChannels(own_.w, seen_.w, *p.few_of_w, stream_));
        }
        return Round(own_.w, wide_.w, p.w_elements);
      case kGradInput:
        if (has_border()) RETURN_IF_ERROR(StatusOf(CopyOutside(wide_.x, seen_.x, p.plan, stream_)));
        return Round(own_.x, wide_.x, p.x_elements);
    }
    return absl::OkStatus();
  }

 private:
  // The operands, in the order of Convolution::Run().
  struct LibraryOperands {
    std::byte* to;
    std::byte* left;
    std::byte* right;
  };
  LibraryOperands Operands() const {
    switch (prepared_.part) {
      case cuda::ConvolutionPart::kForward:
        break;
      case cuda::ConvolutionPart::kGradInput:
        return {seen_.x, seen_.y, seen_.w};
      case cuda::ConvolutionPart::kGradWeight:
        return {seen_.w, seen_.y, seen_.x};
    }
    return {seen_.y, seen_.x, seen_.w};
  }

  bool has_border() const { return prepared_.plan.border.is_copied; }
  absl::Status Pad(std::byte* seen, const std::byte* own,
                   const std::optional<cuda::FewChannels>& few) const {
    return few ? StatusOf(cuda::PadChannels(seen, own, *few, stream_)) : absl::OkStatus();
  }
  absl::Status Widen(std::byte* wide, const std::byte* own, int64_t n) const {
    if (wide == own) return absl::OkStatus();
    return StatusOf(
        cuda::Convert(wide, prepared_.plan.shape.type, own, prepared_.type, n, stream_));
  }
  absl::Status Round(std::byte* own, const std::byte* wide, int64_t n) const {
    if (wide == own) return absl::OkStatus();
    return StatusOf(
        cuda::Convert(own, prepared_.type, wide, prepared_.plan.shape.type, n, stream_));
  }

  const PreparedConvolution prepared_;
  const ConvolutionTensors own_;  // the node's tensors
  ConvolutionTensors wide_;       // in the type that the library computes in
  ConvolutionTensors seen_;       // the tensors that the library sees
  const cudaStream_t stream_;
  std::byte* scratch_;
  std::byte* end_;
};

// Returns the tensors of a node with an image and weights as its first inputs and an image as its
// output. `part` decides which of the images is the convolution's x.
ConvolutionTensors TensorsOf(cuda::ConvolutionPart part, const NodeMemory& m) {
  if (part == cuda::ConvolutionPart::kGradInput) return {m.outputs[0], m.inputs[1], m.inputs[0]};
  return {m.inputs[0], m.inputs[1], m.outputs[0]};
}

// The operation on y that follows the convolution.
using Finish = std::function<cudaError_t(const NodeMemory& m, std::byte* workspace)>;

// Plans a node from an image, weights, ... to an image.
PlannedNode PlanForward(const CudaNode& node, const PreparedConvolution& prepared,
                        int64_t finish_bytes, Finish finish) {
  PlannedNode planned{.output_layouts = {prepared.layout},
                      .workspace_bytes = prepared.workspace_bytes() + finish_bytes,
                      .prepare = [=, name = node.node->name(), &context = node.context,
                                  stream = node.context.stream](const NodeMemory& m) -> NodeRun {
                        const PlacedConvolution placed(prepared, TensorsOf(prepared.part, m),
                                                       m.workspace, stream);
                        placed.Choose(name, context);
                        return [=](const RunNumbers&) -> absl::Status {
                          RETURN_IF_ERROR(placed.Run());
                          return StatusOf(finish(m, placed.end()));
                        };
                      }};
  planned.input_layouts.resize(node.inputs.size());
  planned.input_layouts[0] = planned.input_layouts[1] = prepared.operand_layout();
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

// Inputs: x, w, bias?. Output: y, the input gradient of the convolution that maps y to x.
absl::StatusOr<PlannedNode> PlanConvTranspose2d(const CudaNode& node) {
  const Shape& y = node.outputs[0].shape;
  ASSIGN_OR_RETURN(
      const PreparedConvolution prepared,
      Prepare(node, cuda::ConvolutionPart::kGradInput, y, node.shape(1), node.shape(0)));
  const cuda::BatchNormShape shape =
      ChannelsOf(y, prepared.layout, node.type(0), cuda::BatchNormActivation::kNone);
  const bool has_bias = node.inputs.size() > 2;
  return PlanForward(node, prepared, cuda::BatchNormStateBytes(shape),
                     [=, stream = node.context.stream](const NodeMemory& m, std::byte* workspace) {
                       if (!has_bias) return cudaSuccess;
                       return cuda::AddChannelBias(m.outputs[0], m.outputs[0], m.inputs[2], shape,
                                                   workspace, stream);
                     });
}

// Inputs: x, w, running mean, running variance, bias, gain?.
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

// Plans a derivative from dy, one more tensor, and a third that gives only its shape. Tensors other
// than dy may have padded channels.
template <typename TensorsOf>
PlannedNode PlanGradient(const CudaNode& node, const PreparedConvolution& prepared,
                         TensorsOf tensors_of) {
  return {.input_layouts = {prepared.layout, prepared.operand_layout(), Layout::kPlain},
          .output_layouts = {prepared.operand_layout()},
          .shape_only = {2},
          .workspace_bytes = prepared.workspace_bytes(),
          .prepare = [=, name = node.node->name(), &context = node.context,
                      stream = node.context.stream](const NodeMemory& m) -> NodeRun {
            const PlacedConvolution placed(prepared, tensors_of(m), m.workspace, stream);
            placed.Choose(name, context);
            return [placed](const RunNumbers&) { return placed.Run(); };
          }};
}

// Inputs: dy, w, x (shape).
absl::StatusOr<PlannedNode> PlanConv2dGradInput(const CudaNode& node) {
  ASSIGN_OR_RETURN(const PreparedConvolution prepared,
                   Prepare(node, cuda::ConvolutionPart::kGradInput, node.outputs[0].shape,
                           node.shape(1), node.shape(0)));
  return PlanGradient(node, prepared, [](const NodeMemory& m) -> ConvolutionTensors {
    return {.x = m.outputs[0], .w = m.inputs[1], .y = m.inputs[0]};
  });
}

// Inputs: dy, x, w (shape).
absl::StatusOr<PlannedNode> PlanConv2dGradWeight(const CudaNode& node) {
  ASSIGN_OR_RETURN(const PreparedConvolution prepared,
                   Prepare(node, cuda::ConvolutionPart::kGradWeight, node.shape(1),
                           node.outputs[0].shape, node.shape(0)));
  return PlanGradient(node, prepared, [](const NodeMemory& m) -> ConvolutionTensors {
    return {.x = m.inputs[1], .w = m.outputs[0], .y = m.inputs[0]};
  });
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
          .type = node.type(0),
          .dilations = window.dilations};
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

// Inputs: dy, x (layout), y (shape), state. The state numbers pixels in the layout that the forward
// kernel found x in.
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

// Returns the pixels of an image as the dimensions of a reduction.
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
  table["ConvTranspose2d"] = PlanConvTranspose2d;
  table["MaxPool2d"] = PlanMaxPool2d;
  table["MaxPool2dGrad"] = PlanMaxPool2dGrad;
  table["AveragePool2d"] = PlanAveragePool2d;
  table["AveragePool2dGrad"] = PlanAveragePool2dGrad;
  table["GlobalAveragePool2d"] = PlanGlobalAveragePool2d;
  table["GlobalAveragePool2dGrad"] = PlanGlobalAveragePool2dGrad;
}

}  // namespace muster
