#include "lib/engine/cuda/cuda_kernels.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "kernels/cuda/movement.h"
#include "lib/engine/cuda/binding.h"
#include "lib/graph/attributes.h"
#include "lib/graph/dtype.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int kRankMax = 12;  // limit of the kernels' index arithmetic

absl::Status CheckRanks(const std::vector<TensorType>& tensors) {
  for (const TensorType& tensor : tensors) {
    if (tensor.shape.size() > kRankMax) {
      return absl::InvalidArgumentError(absl::StrCat("a tensor of ", tensor.shape.size(),
                                                     " dimensions; CUDA kernels take ", kRankMax));
    }
  }
  return absl::OkStatus();
}

}  // namespace

cuda::Type TypeOf(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_BF16:
      return cuda::Type::kBf16;
    case v1::DTYPE_F16:
      return cuda::Type::kF16;
    case v1::DTYPE_I32:
      return cuda::Type::kI32;
    case v1::DTYPE_F32:
      return cuda::Type::kF32;
    default:
      LOG(FATAL) << "dtype " << dtype << " has no elements";
  }
}

absl::Status StatusOf(cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message = absl::StrCat("CUDA: ", cudaGetErrorString(error));
  // Not only allocations fail for lack of memory: kernels, libraries and graphs take GPU memory at
  // their first use.
  if (error == cudaErrorMemoryAllocation) {
    return WithReason(absl::ResourceExhaustedError(message), "MEMORY_EXHAUSTED");
  }
  return absl::InternalError(message);
}

absl::Status StatusOf(cuda::Failure failure) {
  return failure == nullptr ? absl::OkStatus()
                            : absl::InternalError(absl::StrCat("CUDA: ", failure));
}

absl::StatusOr<bool> HasEnded(cudaError_t answer) {
  if (answer == cudaErrorNotReady) return false;
  RETURN_IF_ERROR(StatusOf(answer));
  return true;
}

absl::StatusOr<std::shared_ptr<cuda::MatMul>> CudaContext::Prepare(const cuda::MatMulShape& shape) {
  for (const Product& product : products_) {
    if (product.matmul->shape() == shape) return product.matmul;
  }
  std::unique_ptr<cuda::MatMul> made;
  if (cuda::Failure failure = cuda::MatMul::Create(
          cublas, shape, {.tf32 = tf32, .deterministic = deterministic}, made)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cuBLASLt, matrix product ", shape.ToString(), ": ", failure));
  }
  products_.push_back({std::move(made)});
  return products_.back().matmul;
}

void CudaContext::ChooseOnce(const std::shared_ptr<cuda::MatMul>& product,
                             const cuda::MatMulOperands& operands, void* workspace) {
  const auto entry = std::ranges::find(products_, product, &Product::matmul);
  CHECK(entry != products_.end());
  if (std::exchange(entry->is_chosen, true)) return;
  if (cuda::Failure failure = product->Choose(operands, workspace, stream)) {
    LOG(WARNING) << "matrix product " << product->shape().ToString() << ": " << failure
                 << "; using the library's first algorithm";
  }
  LOG_IF(INFO, !deterministic || VLOG_IS_ON(1))
      << "matrix product " << product->shape().ToString() << ": " << product->choice();
}

std::shared_ptr<const FusedAttentions> CudaContext::Choose(const cuda::AttentionShape& shape,
                                                           const cuda::AttentionMaskShape& mask) {
  const AttentionUse use = {
      .shape = shape, .mask = mask, .has_gradients = has_gradients, .deterministic = deterministic};
  const auto known = std::ranges::find(attentions_, use, &Attention::use);
  if (known != attentions_.end()) return known->choice;
  attentions_.push_back({use, ChooseAttention(use, cudnn, stream)});
  return attentions_.back().choice;
}

cuda::Type CudaNode::type(int input) const { return TypeOf(inputs[input].dtype); }
cuda::Type CudaNode::output_type(int output) const { return TypeOf(outputs[output].dtype); }

CudaKernels::CudaKernels(CudaContext& context) : context_(context) {
  AddMatrixKernels(table_);
  AddImageKernels(table_);
  AddNormalisationKernels(table_);
  AddElementwiseKernels(table_);
  AddReductionKernels(table_);
  AddShapeKernels(table_);
  AddSequenceKernels(table_);
  AddRecurrentKernels(table_);
  AddLossKernels(table_);
  AddCollectiveKernels(table_);
}

absl::StatusOr<PlannedNode> CudaKernels::Plan(const TypedNode& node) {
  const auto planner = table_.find(node.node->op());
  if (planner == table_.end()) {
    return absl::InvalidArgumentError("the op has no kernel on the CUDA device");
  }
  RETURN_IF_ERROR(CheckRanks(node.inputs));
  RETURN_IF_ERROR(CheckRanks(node.outputs));
  CudaNode own{node, context_};
  HidePadding(own);
  return planner->second(own);
}

absl::StatusOr<PlannedNode> CudaKernels::PlanReorder(const TensorType& type, Layout from,
                                                     Layout to) {
  if (from == kPaddedColumns && to == Layout::kPlain) {
    const int64_t columns = type.shape.back();
    return PlannedNode{
        .prepare = Enqueue([stream = context_.stream, columns,
                            sizes = std::vector<int64_t>{type.elements() / columns, columns},
                            bytes = static_cast<int>(DTypeBytes(type.dtype))](const NodeMemory& m) {
          return cuda::CopyBox(m.outputs[0], {0, {columns, 1}}, m.inputs[0],
                               {0, {PaddedSize(columns), 1}}, sizes, bytes, stream);
        })};
  }
  const auto is_of_images = [](Layout l) { return l == Layout::kPlain || l == kChannelsLast; };
  const bool is_read = is_of_images(from) || from == kPaddedColumns;
  if (type.shape.size() != 4 || !is_read || !is_of_images(to)) {
    return absl::InternalError(absl::StrCat("no kernel brings a tensor of ", type.shape.size(),
                                            " dimensions from layout ", static_cast<int>(from),
                                            " into ", static_cast<int>(to), " (cuda_layouts.h)"));
  }
  // Both sides are walked in the order B, H, W, C.
  const std::vector<int64_t> sizes = ShapeInMemory(type.shape, kChannelsLast);
  const auto view = [&](Layout layout) -> cuda::View {
    std::vector<int64_t> shape = ShapeInMemory(type.shape, layout);
    if (layout == kPaddedColumns) shape.back() = PaddedSize(shape.back());
    const std::vector<int64_t> strides = cuda::RowMajorStrides(shape);
    if (layout == kChannelsLast) return {0, strides};
    return {0, {strides[0], strides[2], strides[3], strides[1]}};
  };
  return PlannedNode{
      .prepare = Enqueue([stream = context_.stream, sizes, y = view(to), x = view(from),
                          bytes = static_cast<int>(DTypeBytes(type.dtype))](const NodeMemory& m) {
        return cuda::CopyBox(m.outputs[0], y, m.inputs[0], x, sizes, bytes, stream);
      })};
}

PlannedNode PlanAlias(const CudaNode& node, std::vector<int> shape_only) {
  return {.shape_only = std::move(shape_only),
          .is_alias = true,
          .prepare = [bytes = node.inputs[0].bytes(),
                      stream = node.context.stream](const NodeMemory& m) -> NodeRun {
            if (m.outputs[0] == m.inputs[0]) return nullptr;
            return [=](const RunNumbers&) {
              return StatusOf(cudaMemcpyAsync(m.outputs[0], m.inputs[0], static_cast<size_t>(bytes),
                                              cudaMemcpyDeviceToDevice, stream));
            };
          }};
}

Layout PointwiseLayout(const CudaNode& node, const std::vector<int>& inputs) {
  Layout layout = Layout::kPlain;
  for (int i : inputs) {
    if (node.shape(i) != node.outputs[0].shape) return Layout::kPlain;
    if (node.layouts[i] == kChannelsLast) layout = kChannelsLast;
  }
  return layout;
}

PlannedNode Pointwise(const CudaNode& node, const std::vector<int>& inputs, PlannedNode plan) {
  const Layout layout = PointwiseLayout(node, inputs);
  plan.input_layouts.assign(node.inputs.size(), Layout::kPlain);
  for (int i : inputs) plan.input_layouts[i] = layout;
  plan.output_layouts = {layout};
  for (int i : inputs) {
    if (node.inputs[i].bytes() == node.outputs[0].bytes()) plan.overwritable.push_back(i);
  }
  return plan;
}

std::vector<int64_t> ShapeInMemory(const std::vector<int64_t>& shape, Layout layout) {
  if (layout != kChannelsLast) return shape;
  return {shape[0], shape[2], shape[3], shape[1]};
}

int AxisInMemory(int axis, Layout layout) {
  static constexpr int kPlaces[] = {0, 3, 1, 2};
  return layout == kChannelsLast ? kPlaces[axis] : axis;
}

}  // namespace muster
