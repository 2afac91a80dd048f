// By which kernels a GPU computes an attention: by cuDNN's where it has them and they compute what
// the own ones do, else by the own ones (kernels/cuda/attention.h).
#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <memory>

#include "kernels/cuda/fused_attention.h"

namespace muster {

struct FusedAttentions {
  std::shared_ptr<const kernels::cuda::FusedAttention> forward;
  std::shared_ptr<const kernels::cuda::FusedAttention> backward;  // null: not asked for
};

struct AttentionUse {
  kernels::cuda::AttentionShape shape;
  bool has_mask = false;
  bool has_gradients = false;
  bool deterministic = true;

  bool operator==(const AttentionUse&) const = default;
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
