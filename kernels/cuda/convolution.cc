#include "kernels/cuda/convolution.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "kernels/cuda/convolution_choice.h"
#include "kernels/cuda/cudnn_failure.h"

namespace muster::kernels::cuda {
namespace {

#define MUSTER_RETURN_IF_CUDNN_ERROR(expression)                                     \
  do {                                                                               \
    if (const cudnnStatus_t status = (expression); status != CUDNN_STATUS_SUCCESS) { \
      return status;                                                                 \
    }                                                                                \
  } while (false)

constexpr int kAlgorithmsMax = 16;
constexpr int64_t kWorkspaceBytesMax = int64_t{512} << 20;
// Timed algorithms may use this much even if the library's first choice needs less.
constexpr int64_t kWorkspaceBytesTimed = int64_t{128} << 20;
// Workspace limit of the algorithms tried when the library's first choice does not run.
constexpr int64_t kWorkspaceBytesTried = int64_t{16} << 20;

ConvolutionMethod MethodOf(cudnnConvolutionFwdAlgo_t algorithm) {
  switch (algorithm) {
    case CUDNN_CONVOLUTION_FWD_ALGO_FFT:
    case CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING:
      return ConvolutionMethod::kFft;
    case CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD:
    case CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED:
      return ConvolutionMethod::kWinograd;
    default:
      return ConvolutionMethod::kSums;
  }
}

ConvolutionMethod MethodOf(cudnnConvolutionBwdDataAlgo_t algorithm) {
  switch (algorithm) {
    case CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT:
    case CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING:
      return ConvolutionMethod::kFft;
    case CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD:
    case CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED:
      return ConvolutionMethod::kWinograd;
    default:
      return ConvolutionMethod::kSums;
  }
}

ConvolutionMethod MethodOf(cudnnConvolutionBwdFilterAlgo_t algorithm) {
  switch (algorithm) {
    case CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT:
    case CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING:
      return ConvolutionMethod::kFft;
    case CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD:
    case CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED:
      return ConvolutionMethod::kWinograd;
    default:
      return ConvolutionMethod::kSums;
  }
}

cudnnDataType_t ConvolutionDataType(Type type) {
  switch (type) {
    case Type::kBf16:
      return CUDNN_DATA_BFLOAT16;
    case Type::kF16:
      return CUDNN_DATA_HALF;
    case Type::kF32:
    case Type::kI32:
      break;
  }
  return CUDNN_DATA_FLOAT;
}

}  // namespace

std::string ConvolutionShape::ToString() const {
  char text[160];
  std::snprintf(text, sizeof(text), "%s %ldx%ldx%ldx%ld, %ld of %ldx%ld, stride %ld, groups %ld%s",
                type == Type::kBf16  ? "bf16"
                : type == Type::kF16 ? "f16"
                                     : "f32",
                batch, image[0], image[1], channels, outputs, kernel[0], kernel[1], strides[0],
                groups, order == ChannelOrder::kLast ? ", channels last" : "");
  return text;
}

Failure Convolution::Create(cudnnHandle_t handle, ConvolutionPart part,
                            const ConvolutionShape& shape, const ConvolutionOptions& options,
                            std::unique_ptr<Convolution>& convolution) {
  std::unique_ptr<Convolution> made(new Convolution(handle, part, shape, options));
  if (Failure failure = FailureOf(made->Describe())) return failure;
  if (Failure failure = FailureOf(made->PickAlgorithm())) return failure;
  if (!options.deterministic) {
    made->workspace_bytes_ = std::max(made->workspace_bytes_, kWorkspaceBytesTimed);
  }
  convolution = std::move(made);
  return nullptr;
}

Convolution::~Convolution() {
  if (x_ != nullptr) cudnnDestroyTensorDescriptor(x_);
  if (y_ != nullptr) cudnnDestroyTensorDescriptor(y_);
  if (w_ != nullptr) cudnnDestroyFilterDescriptor(w_);
  if (operation_ != nullptr) cudnnDestroyConvolutionDescriptor(operation_);
}

cudnnStatus_t Convolution::Describe() {
  const ConvolutionShape& s = shape_;
  const cudnnDataType_t type = ConvolutionDataType(s.type);
  const cudnnTensorFormat_t format =
      s.order == ChannelOrder::kLast ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
  const auto i = [](int64_t n) { return static_cast<int>(n); };
  MUSTER_RETURN_IF_CUDNN_ERROR(cudnnCreateTensorDescriptor(&x_));
  MUSTER_RETURN_IF_CUDNN_ERROR(cudnnCreateTensorDescriptor(&y_));
  MUSTER_RETURN_IF_CUDNN_ERROR(cudnnCreateFilterDescriptor(&w_));
  MUSTER_RETURN_IF_CUDNN_ERROR(cudnnCreateConvolutionDescriptor(&operation_));
  // Sizes are in the order N, C, H, W whatever the layout.
  MUSTER_RETURN_IF_CUDNN_ERROR(cudnnSetTensor4dDescriptor(
      x_, format, type, i(s.batch), i(s.channels), i(s.image[0]), i(s.image[1])));
  MUSTER_RETURN_IF_CUDNN_ERROR(cudnnSetTensor4dDescriptor(
      y_, format, type, i(s.batch), i(s.outputs), i(s.output[0]), i(s.output[1])));
  MUSTER_RETURN_IF_CUDNN_ERROR(cudnnSetFilter4dDescriptor(
      w_, type, format, i(s.outputs), i(s.channels / s.groups), i(s.kernel[0]), i(s.kernel[1])));
  MUSTER_RETURN_IF_CUDNN_ERROR(cudnnSetConvolution2dDescriptor(
      operation_, i(s.padding[0]), i(s.padding[1]), i(s.strides[0]), i(s.strides[1]),
      i(s.dilations[0]), i(s.dilations[1]), CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
  MUSTER_RETURN_IF_CUDNN_ERROR(cudnnSetConvolutionGroupCount(operation_, i(s.groups)));
  return cudnnSetConvolutionMathType(operation_,
                                     is_f32_alone() ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH);
}

template <typename Performance>
bool Convolution::Pick(const Performance* found, int count, int64_t workspace_bytes_max) {
  const ConvolutionPrecision precision = {
      .type = shape_.type, .tf32 = options_.tf32, .deterministic = options_.deterministic};
  std::vector<Candidate> candidates;
  for (int k = 0; k < count; ++k) {
    const Performance& candidate = found[k];
    if (candidate.status != CUDNN_STATUS_SUCCESS) continue;
    if (options_.deterministic && candidate.determinism != CUDNN_DETERMINISTIC) continue;
    if (!Admits(MethodOf(candidate.algo), precision)) continue;
    // Unless TF32 is allowed, f32 must not run on tensor cores.
    if (is_f32_alone() && candidate.mathType == CUDNN_TENSOR_OP_MATH) continue;
    Candidate admitted = {.algorithm = static_cast<int>(candidate.algo),
                          .math = is_f32_alone() ? CUDNN_FMA_MATH : candidate.mathType,
                          .milliseconds = candidate.time};
    // An algorithm can need more memory than the list says, so ask for each one.
    if (cudnnSetConvolutionMathType(operation_, admitted.math) != CUDNN_STATUS_SUCCESS) continue;
    size_t bytes = 0;
    if (WorkspaceBytes(candidate.algo, bytes) != CUDNN_STATUS_SUCCESS) continue;
    admitted.workspace_bytes = static_cast<int64_t>(bytes);
    if (admitted.workspace_bytes <= workspace_bytes_max) candidates.push_back(admitted);
  }
  if (candidates.empty()) {
    if (!candidates_.empty()) Take(chosen_);  // an earlier choice stays, with its math
    return false;
  }
  candidates_ = std::move(candidates);
  return Take(candidates_.front()) == CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t Convolution::WorkspaceBytes(cudnnConvolutionFwdAlgo_t algorithm,
                                          size_t& bytes) const {
  return cudnnGetConvolutionForwardWorkspaceSize(handle_, x_, w_, operation_, y_, algorithm,
                                                 &bytes);
}

cudnnStatus_t Convolution::WorkspaceBytes(cudnnConvolutionBwdDataAlgo_t algorithm,
                                          size_t& bytes) const {
  return cudnnGetConvolutionBackwardDataWorkspaceSize(handle_, w_, y_, operation_, x_, algorithm,
                                                      &bytes);
}

cudnnStatus_t Convolution::WorkspaceBytes(cudnnConvolutionBwdFilterAlgo_t algorithm,
                                          size_t& bytes) const {
  return cudnnGetConvolutionBackwardFilterWorkspaceSize(handle_, x_, y_, operation_, w_, algorithm,
                                                        &bytes);
}

cudnnStatus_t Convolution::Take(const Candidate& candidate) {
  chosen_ = candidate;
  return cudnnSetConvolutionMathType(operation_, candidate.math);
}

cudnnStatus_t Convolution::PickAlgorithm() {
  int count = 0;
  bool picked = false;
  switch (part_) {
    case ConvolutionPart::kForward: {
      cudnnConvolutionFwdAlgoPerf_t found[kAlgorithmsMax];
      MUSTER_RETURN_IF_CUDNN_ERROR(cudnnGetConvolutionForwardAlgorithm_v7(
          handle_, x_, w_, operation_, y_, kAlgorithmsMax, &count, found));
      picked = Pick(found, count, kWorkspaceBytesMax);
      break;
    }
    case ConvolutionPart::kGradInput: {
      cudnnConvolutionBwdDataAlgoPerf_t found[kAlgorithmsMax];
      MUSTER_RETURN_IF_CUDNN_ERROR(cudnnGetConvolutionBackwardDataAlgorithm_v7(
          handle_, w_, y_, operation_, x_, kAlgorithmsMax, &count, found));
      picked = Pick(found, count, kWorkspaceBytesMax);
      break;
    }
    case ConvolutionPart::kGradWeight: {
      cudnnConvolutionBwdFilterAlgoPerf_t found[kAlgorithmsMax];
      MUSTER_RETURN_IF_CUDNN_ERROR(cudnnGetConvolutionBackwardFilterAlgorithm_v7(
          handle_, x_, y_, operation_, w_, kAlgorithmsMax, &count, found));
      picked = Pick(found, count, kWorkspaceBytesMax);
      break;
    }
  }
  if (!picked) return CUDNN_STATUS_NOT_SUPPORTED;
  chosen_.milliseconds = -1;  // it was the library's guess
  // An algorithm tried after the first must not make every convolution reserve its memory.
  std::erase_if(candidates_, [most = std::max(chosen_.workspace_bytes, kWorkspaceBytesTried)](
                                 const Candidate& c) { return c.workspace_bytes > most; });
  for (const Candidate& candidate : candidates_) {
    workspace_bytes_ = std::max(workspace_bytes_, candidate.workspace_bytes);
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t Convolution::TimeAlgorithms(void* to, const void* left, const void* right,
                                          void* workspace) {
  const auto bytes = static_cast<size_t>(workspace_bytes_);
  int count = 0;
  bool picked = false;
  switch (part_) {
    case ConvolutionPart::kForward: {
      cudnnConvolutionFwdAlgoPerf_t found[kAlgorithmsMax];
      MUSTER_RETURN_IF_CUDNN_ERROR(
          cudnnFindConvolutionForwardAlgorithmEx(handle_, x_, left, w_, right, operation_, y_, to,
                                                 kAlgorithmsMax, &count, found, workspace, bytes));
      picked = Pick(found, count, workspace_bytes_);
      break;
    }
    case ConvolutionPart::kGradInput: {
      cudnnConvolutionBwdDataAlgoPerf_t found[kAlgorithmsMax];
      MUSTER_RETURN_IF_CUDNN_ERROR(cudnnFindConvolutionBackwardDataAlgorithmEx(
          handle_, w_, right, y_, left, operation_, x_, to, kAlgorithmsMax, &count, found,
          workspace, bytes));
      picked = Pick(found, count, workspace_bytes_);
      break;
    }
    case ConvolutionPart::kGradWeight: {
      cudnnConvolutionBwdFilterAlgoPerf_t found[kAlgorithmsMax];
      MUSTER_RETURN_IF_CUDNN_ERROR(cudnnFindConvolutionBackwardFilterAlgorithmEx(
          handle_, x_, right, y_, left, operation_, w_, to, kAlgorithmsMax, &count, found,
          workspace, bytes));
      picked = Pick(found, count, workspace_bytes_);
      break;
    }
  }
  return picked ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

Failure Convolution::Choose(void* to, const void* left, const void* right, void* workspace) {
  if (!options_.deterministic) return FailureOf(TimeAlgorithms(to, left, right, workspace));
  for (const Candidate& candidate : candidates_) {
    if (Take(candidate) != CUDNN_STATUS_SUCCESS) continue;
    chosen_.milliseconds = -1;
    if (Run(to, left, right, workspace) == nullptr) return nullptr;
  }
  Take(candidates_.front());
  return Run(to, left, right, workspace);
}

std::string Convolution::choice() const {
  char text[64];
  if (chosen_.milliseconds < 0) {
    std::snprintf(text, sizeof(text), "algorithm %d", chosen_.algorithm);
  } else {
    std::snprintf(text, sizeof(text), "algorithm %d, %.1f us", chosen_.algorithm,
                  static_cast<double>(1000 * chosen_.milliseconds));
  }
  return text;
}

Failure Convolution::Run(void* to, const void* left, const void* right, void* workspace) {
  const float one = 1, zero = 0;
  const auto bytes = static_cast<size_t>(workspace_bytes_);
  switch (part_) {
    case ConvolutionPart::kForward:
      return FailureOf(
          cudnnConvolutionForward(handle_, &one, x_, left, w_, right, operation_,
                                  static_cast<cudnnConvolutionFwdAlgo_t>(chosen_.algorithm),
                                  workspace, bytes, &zero, y_, to));
    case ConvolutionPart::kGradInput:
      return FailureOf(cudnnConvolutionBackwardData(
          handle_, &one, w_, right, y_, left, operation_,
          static_cast<cudnnConvolutionBwdDataAlgo_t>(chosen_.algorithm), workspace, bytes, &zero,
          x_, to));
    case ConvolutionPart::kGradWeight:
      return FailureOf(cudnnConvolutionBackwardFilter(
          handle_, &one, x_, right, y_, left, operation_,
          static_cast<cudnnConvolutionBwdFilterAlgo_t>(chosen_.algorithm), workspace, bytes, &zero,
          w_, to));
  }
  return "unknown part";
}

}  // namespace muster::kernels::cuda
