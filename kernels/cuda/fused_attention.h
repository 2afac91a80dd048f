// Attention and its derivative by cuDNN's graph API: what kernels/cuda/attention.h computes, from
// and to the same memory, where the library has a kernel for it. The library compiles that when it
// is first asked, in about a second.
//   Source: the operations that cuDNN's documentation gives for flash attention, forward and
//   backward; its kernels follow Dao, "FlashAttention-2", 2023.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/libraries.h"

namespace muster::kernels::cuda {

enum class AttentionPart {
  kForward,   // y and lse from q, k and v
  kBackward,  // dq, dk and dv from dy, y, lse, q, k and v
};

struct FusedAttentionOptions {
  // Backward: every sum has one order, for B H T S elements of workspace in which the slopes of the
  // scores are kept. Otherwise dq is added up atomically, in f32.
  bool deterministic = true;
  // Plans for the GPU that this JSON of the library's describes, and cannot run: to find out what
  // the library takes where there is no GPU.
  const char* absent_device = nullptr;
};

// Why the library is not asked for an attention; null: it is. `version` is cudnnGetVersion(),
// `capability` ten times the GPU's compute capability.
//
// It is for bf16 and f16, heads of at most 128 channels and a multiple of 8, a positive scale; T
// and S multiples of 128, as versions before 9.16 have an error in the last tile of others; causal
// where T is S. Not before version 9.11, whose predecessors have an error in backward, and on
// Ampere and Hopper alone, as others need another form to be deterministic.
Failure WhyNotFused(const AttentionShape& shape, int64_t version, int capability);

std::string ToString(const AttentionShape& shape);  // "bf16 8x12x1024x64, causal": B, H, T, C

// One part of an attention, prepared. lse means what it does in attention.h, and in backward +inf
// is a query without weight. A mask is finite and without gaps (attention_mask.h): a query all of
// whose keys are at -inf would not be a number. Whether the library's kernels compute with a mask
// as the own ones do is for the caller to find out (lib/engine/cuda/attention_choice.h). What
// bounds it: tensor cores; the deterministic backward also the memory for the slopes.
class FusedAttention {
 public:
  // `handle` outlives it; null with options.absent_device. The failure is in the library's words.
  static Failure Create(cudnnHandle_t handle, AttentionPart part, const AttentionShape& shape,
                        const AttentionMaskShape& mask, const FusedAttentionOptions& options,
                        std::unique_ptr<FusedAttention>& attention);

  int64_t workspace_bytes() const { return own_bytes_ + library_bytes_; }
  std::string choice() const;  // "engine 6", for logs

  // Asynchronous on the handle's stream; may be captured in a CUDA graph. `workspace` is scratch,
  // 256-byte aligned.
  Failure Forward(void* y, float* lse, const AttentionInputs& inputs, void* workspace) const;
  Failure Backward(const AttentionGradients& gradients, const void* dy, const void* y,
                   const float* lse, const AttentionInputs& inputs, void* workspace) const;

 private:
  class Graph;
  struct Tensor {
    int64_t id;
    const void* data;
  };
  struct Destroyer {
    void operator()(void* descriptor) const { cudnnBackendDestroyDescriptor(descriptor); }
  };
  using Descriptor = std::unique_ptr<void, Destroyer>;

  FusedAttention(cudnnHandle_t handle, const AttentionShape& shape, const AttentionMaskShape& mask)
      : handle_(handle), shape_(shape), mask_(mask) {}
  Failure Plan(Graph& graph, const char* absent_device);
  Failure Run(const std::vector<Tensor>& tensors, std::byte* workspace) const;

  const cudnnHandle_t handle_;
  const AttentionShape shape_;
  const AttentionMaskShape mask_;
  std::vector<Descriptor> described_;  // what the plan was made from
  Descriptor plan_;
  int64_t engine_ = -1;
  int64_t own_bytes_ = 0;  // the workspace's beginning
  int64_t library_bytes_ = 0;
};

}  // namespace muster::kernels::cuda
