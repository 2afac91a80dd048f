// Chooses the kernels of an attention on a GPU: cuDNN's if it has them and they agree with our own,
// else our own (kernels/cuda/attention.h).
#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/fused_attention.h"

namespace muster {

struct AttentionUse {
  kernels::cuda::AttentionShape shape;
  kernels::cuda::AttentionMaskShape mask;
  bool has_gradients = false;
  bool deterministic = true;

  bool operator==(const AttentionUse&) const = default;
};

// cuDNN's kernels of an attention, extended so that masks may have -inf. For a query that sees no
// key, forward sets lse to +inf. The returned Failure may be an error of CUDA or of cuDNN.
class FusedAttentions {
 public:
  using Part = std::shared_ptr<const kernels::cuda::FusedAttention>;
  // `backward` is null if the graph has no gradients.
  FusedAttentions(const AttentionUse& use, Part forward, Part backward)
      : use_(use), forward_(std::move(forward)), backward_(std::move(backward)) {}

  bool has_backward() const { return backward_ != nullptr; }
  int64_t forward_workspace_bytes() const { return MaskBytes() + forward_->workspace_bytes(); }
  int64_t backward_workspace_bytes() const { return MaskBytes() + backward_->workspace_bytes(); }
  std::string choice() const;  // for logs

  // Like the methods of kernels::cuda::FusedAttention. Requires: `stream` is the stream of the
  // cuDNN handle.
  kernels::cuda::Failure Forward(void* y, float* lse, const kernels::cuda::AttentionInputs& inputs,
                                 std::byte* workspace, cudaStream_t stream) const;
  kernels::cuda::Failure Backward(const kernels::cuda::AttentionGradients& gradients,
                                  const void* dy, const void* y, const float* lse,
                                  const kernels::cuda::AttentionInputs& inputs,
                                  std::byte* workspace, cudaStream_t stream) const;

 private:
  int64_t MaskElements() const {  // 0: no mask
    return use_.mask.batch * use_.mask.heads * use_.mask.queries * use_.shape.keys;
  }
  int64_t MaskBytes() const;  // at the start of the workspace

  const AttentionUse use_;
  const Part forward_, backward_;
};

// Returns cuDNN's kernels for forward and backward, or null to use our own kernels for both. Logs
// the choice and its reason, only at VLOG(1) if cuDNN does not support the attention. Takes a
// second or two and temporary GPU memory: cuDNN compiles its kernels, and both versions run on the
// same random numbers.
//
// cuDNN's kernels are refused for any error, and for results that differ:
// - a row of y, dq, dk or dv by more than 8 roundings of its type;
// - lse by more than 1/256;
// - two runs of cuDNN's kernels in any bit, if `use.deterministic`.
//
// If not deterministic, the faster version is chosen. With MUSTER_ATTENTION=own in the environment,
// cuDNN is not tried. Blocks until the work on `stream` is done. Requires: `cudnn` outlives the
// kernels and enqueues on `stream`.
std::shared_ptr<const FusedAttentions> ChooseAttention(const AttentionUse& use, cudnnHandle_t cudnn,
                                                       cudaStream_t stream);

}  // namespace muster
