// By which kernels a GPU computes an attention: by cuDNN's where it has them and they compute what
// the own ones do, else by the own ones (kernels/cuda/attention.h).
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

// cuDNN's kernels of an attention, and what they lack: masks may have -inf. The lse
// that forward makes is +inf for a query that sees no key; the failure may be CUDA's too.
class FusedAttentions {
 public:
  // Null: no backward.
  using Part = std::shared_ptr<const kernels::cuda::FusedAttention>;
  FusedAttentions(const AttentionUse& use, Part forward, Part backward)
      : use_(use), forward_(std::move(forward)), backward_(std::move(backward)) {}

  bool has_backward() const { return backward_ != nullptr; }
  int64_t forward_workspace_bytes() const { return MaskBytes() + forward_->workspace_bytes(); }
  int64_t backward_workspace_bytes() const { return MaskBytes() + backward_->workspace_bytes(); }
  std::string choice() const;  // for logs

  // As kernels::cuda::FusedAttention's, on `stream`, which is its handle's.
  kernels::cuda::Failure Forward(void* y, float* lse, const kernels::cuda::AttentionInputs& inputs,
                                 std::byte* workspace, cudaStream_t stream) const;
  kernels::cuda::Failure Backward(const kernels::cuda::AttentionGradients& gradients,
                                  const void* dy, const void* y, const float* lse,
                                  const kernels::cuda::AttentionInputs& inputs,
                                  std::byte* workspace, cudaStream_t stream) const;

 private:
  int64_t MaskElements() const {  // 0: there is none
    return use_.mask.batch * use_.mask.heads * use_.mask.queries * use_.shape.keys;
  }
  int64_t MaskBytes() const;  // the workspace's beginning

  const AttentionUse use_;
  const Part forward_, backward_;
};

// cuDNN's kernels, for forward and backward alike; null: the own ones, for both. Says in the log
// which and why. Takes a second or two, and GPU memory that it gives back: cuDNN compiles its
// kernels, and both are run on the same random numbers. They are refused for any error and where a
// row of y, dq, dk or dv differs by more than 8 roundings of its type, lse by more than 1/256 or,
// if deterministic, two backward runs by a bit. Where not deterministic, the faster are chosen.
//
// `cudnn` outlives the kernels and enqueues on `stream`, which is waited for. With
// MUSTER_ATTENTION=own in the environment cuDNN is not asked.
std::shared_ptr<const FusedAttentions> ChooseAttention(const AttentionUse& use, cudnnHandle_t cudnn,
                                                       cudaStream_t stream);

}  // namespace muster
