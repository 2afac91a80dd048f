#include "lib/engine/cuda/attention_choice.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "kernels/conversion.h"
#include "kernels/cuda/attention_mask.h"
#include "lib/engine/cuda/binding.h"
#include "lib/engine/cuda/cuda_handles.h"
#include "lib/engine/cuda/row_distance.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using cuda::AttentionPart;
using cuda::AttentionShape;
using cuda::FusedAttention;

// The largest accepted differences: of a row of y or of a gradient, in roundings, and of lse. On
// random numbers, correct kernels that round at different places differ by one or two roundings.
constexpr double kRoundingsMax = 8;
constexpr double kLseDistanceMax = 1.0 / 256;

bool IsTurnedOff() {
  const char* wanted = std::getenv("MUSTER_ATTENTION");
  return wanted != nullptr && absl::string_view(wanted) == "own";
}

absl::StatusOr<int> Capability() {
  int device = 0, major = 0, minor = 0;
  RETURN_IF_ERROR(StatusOf(cudaGetDevice(&device)));
  RETURN_IF_ERROR(
      StatusOf(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)));
  RETURN_IF_ERROR(
      StatusOf(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device)));
  return 10 * major + minor;
}

// Prepares cuDNN's kernel for one part of an attention. The result is not deleted after
// KeepCudaResources(), because the GPU may still use the kernel.
absl::StatusOr<std::shared_ptr<const FusedAttention>> Prepare(const AttentionUse& use,
                                                              AttentionPart part,
                                                              cudnnHandle_t cudnn) {
  std::unique_ptr<FusedAttention> made;
  RETURN_IF_ERROR(StatusOf(FusedAttention::Create(cudnn, part, use.shape, use.mask,
                                                  {.deterministic = use.deterministic}, made)));
  return std::shared_ptr<const FusedAttention>(made.release(), [](const FusedAttention* attention) {
    if (!CudaResourcesAreKept()) delete attention;
  });
}

absl::StatusOr<FusedAttentions> Prepare(const AttentionUse& use, cudnnHandle_t cudnn) {
  FusedAttentions::Part backward;
  ASSIGN_OR_RETURN(FusedAttentions::Part forward, Prepare(use, AttentionPart::kForward, cudnn));
  if (use.has_gradients) {
    ASSIGN_OR_RETURN(backward, Prepare(use, AttentionPart::kBackward, cudnn));
  }
  return FusedAttentions(use, std::move(forward), std::move(backward));
}

// Returns pseudo-random numbers between -2 and 2.
std::vector<uint16_t> Numbers(int64_t count, uint32_t seed, cuda::Type type) {
  std::vector<float> wide(count);
  for (float& value : wide) {
    seed = seed * 1664525 + 1013904223;
    value = static_cast<float>(seed >> 8) * 0x1p-22f - 2;
  }
  std::vector<uint16_t> narrow(count);
  kernels::Convert(
      narrow.data(),
      type == cuda::Type::kBf16 ? kernels::ElementType::kBf16 : kernels::ElementType::kF16,
      wide.data(), kernels::ElementType::kF32, count);
  return narrow;
}

// Returns a mask with -inf for some keys. If each sample has its own mask, the last sample has -inf
// for all keys.
std::vector<float> MaskNumbers(const cuda::AttentionMaskShape& mask, int64_t keys) {
  const int64_t of_sample = mask.heads * mask.queries * keys;
  std::vector<float> numbers(mask.batch * of_sample);
  uint32_t seed = 3;
  for (size_t i = 0; i < numbers.size(); ++i) {
    seed = seed * 1664525 + 1013904223;
    const bool is_unseen =
        seed >> 30 == 0 || (mask.batch > 1 && i >= numbers.size() - static_cast<size_t>(of_sample));
    numbers[i] = is_unseen ? -HUGE_VALF : static_cast<float>(seed >> 8) * 0x1p-23f;
  }
  return numbers;
}

// The results of an attention and its derivative.
struct Results {
  std::vector<uint16_t> y;
  std::vector<float> lse;
  std::vector<uint16_t> gradients;
};

// Memory of an attention, filled with random numbers, on which both versions of the kernels run.
class Trial {
 public:
  static absl::StatusOr<std::unique_ptr<Trial>> Create(const AttentionUse& use,
                                                       const FusedAttentions& fused,
                                                       cudaStream_t stream) {
    std::unique_ptr<Trial> trial(new Trial(use, fused, stream));
    RETURN_IF_ERROR(trial->Fill());
    return trial;
  }

  absl::StatusOr<Results> Own() {
    return Made([this] { return EnqueueOwn(); });
  }
  absl::StatusOr<Results> Fused() {
    return Made([this] { return EnqueueFused(); });
  }

  // Returns how `fused` differs from `own` by more than allowed, or "" if it does not. Raises
  // `distance` to the largest difference of y and the gradients, in roundings.
  std::string Difference(const Results& own, const Results& fused, double& distance) const {
    const double rounding = use_.shape.type == cuda::Type::kBf16 ? 0x1p-8 : 0x1p-11;
    std::string difference;
    const auto compare = [&](absl::string_view what, absl::Span<const uint16_t> a,
                             absl::Span<const uint16_t> b, int64_t row) {
      const double found = RowDistance(a, b, row, use_.shape.type) / rounding;
      distance = std::max(distance, found);
      if (found > kRoundingsMax && difference.empty()) {
        difference = absl::StrFormat("a row of %s differs by %.3g roundings", what, found);
      }
    };
    compare("y", own.y, fused.y, use_.shape.head_values);
    double apart = 0;
    for (size_t i = 0; i < own.lse.size(); ++i) {
      if (own.lse[i] == -HUGE_VALF && fused.lse[i] == HUGE_VALF) continue;  // the query sees no key
      const double found = std::abs(double{fused.lse[i]} - own.lse[i]);
      apart =
          found <= kLseDistanceMax ? apart : std::max(apart, std::isnan(found) ? HUGE_VAL : found);
    }
    if (apart > 0 && difference.empty()) difference = absl::StrFormat("lse differs by %.3g", apart);
    if (use_.has_gradients) {
      for (const Part& part : parts_) {
        const auto in = [&](const Results& results) {
          return absl::MakeSpan(results.gradients).subspan(part.first, part.elements);
        };
        compare(part.gradient, in(own), in(fused), part.row);
      }
    }
    return difference;
  }

  // Return the milliseconds of one run of forward and backward.
  absl::StatusOr<float> TimeOwn() {
    return Time([this] { return EnqueueOwn(); });
  }
  absl::StatusOr<float> TimeFused() {
    return Time([this] { return EnqueueFused(); });
  }

 private:
  // The rows of q, k or v, or of all three.
  struct Part {
    std::string gradient;
    int64_t first;
    int64_t elements;
    int64_t row;  // elements of one head's row
  };

  Trial(const AttentionUse& use, const FusedAttentions& fused, cudaStream_t stream)
      : use_(use), fused_(fused), stream_(stream) {
    const AttentionShape& s = use_.shape;
    const int64_t q = s.batch * s.queries * s.q_row;
    const int64_t k = s.batch * s.keys * s.k_row, v = s.batch * s.keys * s.v_row;
    const bool is_one_tensor = s.queries == s.keys && s.head_channels == s.head_values &&
                               s.q_row == 3 * s.heads * s.head_channels && s.k_row == s.q_row &&
                               s.v_row == s.q_row;
    if (is_one_tensor) {
      const int64_t columns = s.heads * s.head_channels;
      places_ = {0, columns, 2 * columns};
      parts_ = {{"dq, dk or dv", 0, q, s.head_channels}};
    } else {
      places_ = {0, q, q + k};
      parts_ = {{"dq", 0, q, s.head_channels},
                {"dk", q, k, s.head_channels},
                {"dv", q + k, v, s.head_values}};
    }
    rows_elements_ = parts_.back().first + parts_.back().elements;
    y_elements_ = s.batch * s.queries * s.heads * s.head_values;
    lse_elements_ = s.batch * s.queries * s.heads;
  }

  absl::Status Fill() {
    const int64_t element = cuda::Bytes(use_.shape.type);
    int64_t bytes = 0;
    const auto place = [&bytes](int64_t size) {
      return std::exchange(bytes, bytes + Aligned(size));
    };
    const int64_t inputs = place(rows_elements_ * element), y = place(y_elements_ * element);
    const int64_t lse = place(lse_elements_ * int64_t{sizeof(float)});
    const int64_t dy = place(y_elements_ * element), gradients = place(rows_elements_ * element);
    const std::vector<float> mask_numbers = MaskNumbers(use_.mask, use_.shape.keys);
    const auto mask_bytes = static_cast<int64_t>(mask_numbers.size() * sizeof(float));
    const int64_t mask = place(mask_bytes);
    const int64_t workspace =
        place(std::max({lse_elements_ * int64_t{sizeof(float)}, fused_.forward_workspace_bytes(),
                        fused_.has_backward() ? fused_.backward_workspace_bytes() : int64_t{0}}));
    ASSIGN_OR_RETURN(memory_, AllocateCudaMemory(bytes, "comparing kernels of an attention"));
    inputs_ = memory_.get() + inputs;
    y_ = memory_.get() + y;
    lse_ = Floats(memory_.get() + lse);
    dy_ = memory_.get() + dy;
    gradients_ = memory_.get() + gradients;
    if (mask_bytes > 0) mask_ = Floats(memory_.get() + mask);
    workspace_ = memory_.get() + workspace;
    RETURN_IF_ERROR(Upload(inputs_, Numbers(rows_elements_, /*seed=*/1, use_.shape.type)));
    if (mask_ != nullptr) RETURN_IF_ERROR(Upload(mask_, mask_numbers));
    return Upload(dy_, Numbers(y_elements_, /*seed=*/2, use_.shape.type));
  }

  template <typename T>
  absl::Status Upload(void* to, const std::vector<T>& from) const {
    RETURN_IF_ERROR(StatusOf(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(from[0]),
                                             cudaMemcpyHostToDevice, stream_)));
    return StatusOf(cudaStreamSynchronize(stream_));
  }

  template <typename T>
  absl::Status Download(std::vector<T>& to, const void* from, int64_t elements) const {
    to.resize(elements);
    return StatusOf(
        cudaMemcpyAsync(to.data(), from, to.size() * sizeof(T), cudaMemcpyDeviceToHost, stream_));
  }

  std::byte* At(std::byte* rows, int i) const {
    return rows + places_[i] * cuda::Bytes(use_.shape.type);
  }
  cuda::AttentionInputs Inputs() const {
    const int64_t of_head = use_.mask.queries * use_.shape.keys;
    const cuda::AttentionMask mask = {
        .data = mask_,
        .batch_stride = use_.mask.batch > 1 ? use_.mask.heads * of_head : 0,
        .head_stride = use_.mask.heads > 1 ? of_head : 0,
        .query_stride = use_.mask.queries > 1 ? use_.shape.keys : 0};
    return {At(inputs_, 0), At(inputs_, 1), At(inputs_, 2), mask};
  }
  cuda::AttentionGradients Gradients() const {
    return {At(gradients_, 0), At(gradients_, 1), At(gradients_, 2)};
  }

  absl::Status EnqueueOwn() const {
    RETURN_IF_ERROR(StatusOf(cuda::Attention(y_, lse_, Inputs(), use_.shape, stream_)));
    if (!use_.has_gradients) return absl::OkStatus();
    return StatusOf(cuda::AttentionGrad(Gradients(), dy_, y_, lse_, Inputs(), use_.shape,
                                        Floats(workspace_), stream_));
  }
  absl::Status EnqueueFused() const {
    RETURN_IF_ERROR(StatusOf(fused_.Forward(y_, lse_, Inputs(), workspace_, stream_)));
    if (!use_.has_gradients) return absl::OkStatus();
    return StatusOf(fused_.Backward(Gradients(), dy_, y_, lse_, Inputs(), workspace_, stream_));
  }

  // Returns the results that `enqueue` writes. Clears the outputs first, so that an element that a
  // kernel does not write is visible.
  absl::StatusOr<Results> Made(absl::FunctionRef<absl::Status()> enqueue) const {
    const int64_t element = cuda::Bytes(use_.shape.type);
    const auto clear = [this](void* memory, int64_t bytes) {
      return StatusOf(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream_));
    };
    RETURN_IF_ERROR(clear(y_, y_elements_ * element));
    RETURN_IF_ERROR(clear(lse_, lse_elements_ * int64_t{sizeof(float)}));
    RETURN_IF_ERROR(clear(gradients_, rows_elements_ * element));
    RETURN_IF_ERROR(enqueue());
    Results results;
    RETURN_IF_ERROR(Download(results.y, y_, y_elements_));
    RETURN_IF_ERROR(Download(results.lse, lse_, lse_elements_));
    RETURN_IF_ERROR(Download(results.gradients, gradients_, rows_elements_));
    RETURN_IF_ERROR(StatusOf(cudaStreamSynchronize(stream_)));
    return results;
  }

  absl::StatusOr<float> Time(absl::FunctionRef<absl::Status()> enqueue) const {
    constexpr int kRuns = 5;
    cudaEvent_t start = nullptr, end = nullptr;
    const auto destroy = absl::MakeCleanup([&] {
      if (start != nullptr) cudaEventDestroy(start);
      if (end != nullptr) cudaEventDestroy(end);
    });
    RETURN_IF_ERROR(StatusOf(cudaEventCreate(&start)));
    RETURN_IF_ERROR(StatusOf(cudaEventCreate(&end)));
    RETURN_IF_ERROR(StatusOf(cudaEventRecord(start, stream_)));
    for (int run = 0; run < kRuns; ++run) RETURN_IF_ERROR(enqueue());
    RETURN_IF_ERROR(StatusOf(cudaEventRecord(end, stream_)));
    RETURN_IF_ERROR(StatusOf(cudaEventSynchronize(end)));
    float milliseconds = 0;
    RETURN_IF_ERROR(StatusOf(cudaEventElapsedTime(&milliseconds, start, end)));
    return milliseconds / kRuns;
  }

  const AttentionUse use_;
  const FusedAttentions& fused_;
  const cudaStream_t stream_;
  std::vector<int64_t> places_;  // offsets of q, k and v in elements
  std::vector<Part> parts_;
  int64_t rows_elements_ = 0, y_elements_ = 0, lse_elements_ = 0;
  CudaMemory memory_;
  std::byte *inputs_ = nullptr, *y_ = nullptr, *dy_ = nullptr, *gradients_ = nullptr;
  std::byte* workspace_ = nullptr;
  float* lse_ = nullptr;
  float* mask_ = nullptr;  // null: no mask
};

// Returns a description of how well cuDNN's kernels did, or an error if they must not be used.
absl::StatusOr<std::string> Try(const AttentionUse& use, const FusedAttentions& fused,
                                cudaStream_t stream) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Trial> trial, Trial::Create(use, fused, stream));
  ASSIGN_OR_RETURN(const Results own, trial->Own());
  ASSIGN_OR_RETURN(const Results result, trial->Fused());
  double distance = 0;
  if (std::string difference = trial->Difference(own, result, distance); !difference.empty()) {
    return absl::InternalError(difference);
  }
  std::string how = absl::StrFormat("as the own kernels to %.2g roundings", distance);
  if (use.deterministic) {
    ASSIGN_OR_RETURN(const Results again, trial->Fused());
    if (again.y != result.y || again.lse != result.lse || again.gradients != result.gradients) {
      return absl::InternalError("two runs differ");
    }
    return how;
  }
  ASSIGN_OR_RETURN(const float own_ms, trial->TimeOwn());
  ASSIGN_OR_RETURN(const float fused_ms, trial->TimeFused());
  const std::string times = absl::StrFormat("%.3f ms, the own kernels' %.3f ms", fused_ms, own_ms);
  if (fused_ms > own_ms) return absl::InternalError(absl::StrCat("slower: ", times));
  return absl::StrCat(how, ", ", times);
}

std::string Version() {
  const size_t version = cudnnGetVersion();
  return absl::StrCat("cuDNN ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace

int64_t FusedAttentions::MaskBytes() const {
  return Aligned(MaskElements() * int64_t{sizeof(float)});
}

std::string FusedAttentions::choice() const {
  return has_backward() ? absl::StrCat(forward_->choice(), " and ", backward_->choice())
                        : forward_->choice();
}

cuda::Failure FusedAttentions::Forward(void* y, float* lse, const cuda::AttentionInputs& inputs,
                                       std::byte* workspace, cudaStream_t stream) const {
  if (MaskElements() == 0) return forward_->Forward(y, lse, inputs, workspace);
  cuda::AttentionInputs finite = inputs;
  finite.mask = {.data = Floats(workspace)};
  cudaError_t error =
      cuda::MakeMaskFinite(Floats(workspace), inputs.mask.data, MaskElements(), stream);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  if (cuda::Failure failure = forward_->Forward(y, lse, finite, workspace + MaskBytes())) {
    return failure;
  }
  error = cuda::ClearUnseeingQueries(y, lse, use_.shape, stream);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

cuda::Failure FusedAttentions::Backward(const cuda::AttentionGradients& gradients, const void* dy,
                                        const void* y, const float* lse,
                                        const cuda::AttentionInputs& inputs, std::byte* workspace,
                                        cudaStream_t stream) const {
  if (MaskElements() == 0) return backward_->Backward(gradients, dy, y, lse, inputs, workspace);
  cuda::AttentionInputs finite = inputs;
  finite.mask = {.data = Floats(workspace)};
  const cudaError_t error =
      cuda::MakeMaskFinite(Floats(workspace), inputs.mask.data, MaskElements(), stream);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return backward_->Backward(gradients, dy, y, lse, finite, workspace + MaskBytes());
}

std::shared_ptr<const FusedAttentions> ChooseAttention(const AttentionUse& use, cudnnHandle_t cudnn,
                                                       cudaStream_t stream) {
  const std::string attention = absl::StrCat("attention ", cuda::ToString(use.shape),
                                             use.mask.batch > 0 ? ", masked: " : ": ");
  const auto decide = [&]() -> absl::StatusOr<std::shared_ptr<const FusedAttentions>> {
    ASSIGN_OR_RETURN(FusedAttentions fused, Prepare(use, cudnn));
    ASSIGN_OR_RETURN(const std::string how, Try(use, fused, stream));
    LOG(INFO) << attention << Version() << ", " << fused.choice() << ", " << how;
    return std::make_shared<const FusedAttentions>(std::move(fused));
  };
  if (IsTurnedOff()) {
    LOG(INFO) << attention << "own kernels, because of MUSTER_ATTENTION=own";
    return nullptr;
  }
  const absl::StatusOr<int> capability = Capability();
  if (!capability.ok()) return nullptr;  // the next CUDA call reports the same error
  const auto version = static_cast<int64_t>(cudnnGetVersion());
  if (cuda::Failure why = cuda::WhyNotFused(use.shape, version, *capability)) {
    VLOG(1) << attention << "own kernels; " << Version() << " is not tried: " << why;
    return nullptr;
  }
  const auto decided = decide();
  if (decided.ok()) return *decided;
  LOG(WARNING) << attention << "own kernels; " << Version() << "'s: " << decided.status().message();
  return nullptr;
}

}  // namespace muster
