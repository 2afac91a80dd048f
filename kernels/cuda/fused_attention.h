// Attention and its derivative by cuDNN's graph API, for shapes that cuDNN supports. Computes the
// same as kernels/cuda/attention.h, on the same memory. The library compiles each kernel on first
// use, in about a second.
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
  // Used by the backward pass. true: every sum has a fixed order; this takes B H T S elements of
  // workspace for the gradients of the scores. false: dq is summed atomically, in f32.
  bool deterministic = true;
  // Plans for the GPU that this JSON of cuDNN's format describes; the plan cannot run. Tests use it
  // to find out what the library supports where there is no GPU.
  const char* absent_device = nullptr;
};

// Returns why the library is not used for an attention; null if it is. `version` is
// cudnnGetVersion(), `capability` ten times the GPU's compute capability. It requires:
// - bf16 or f16, heads of at most 128 channels and a multiple of 8, a positive scale.
// - T and S multiples of 128, because versions before 9.16 have an error in the last tile of
//   others.
// - T equal to S if causal.
// - version 9.11 or later, because earlier versions have an error in backward.
// - Ampere or Hopper, because other GPUs need another form to be deterministic.
Failure WhyNotFused(const AttentionShape& shape, int64_t version, int capability);

std::string ToString(const AttentionShape& shape);  // "bf16 8x12x1024x64, causal": B, H, T, C

// One prepared part of an attention. lse has the meaning of attention.h; in backward +inf means a
// query without weight. A mask must be finite and without gaps (attention_mask.h): a query whose
// keys all have -inf would give NaN. The caller must check that the library's kernels treat a mask
// as our own do (lib/engine/cuda/attention_choice.h). Bound by tensor cores; deterministic backward
// also by memory, for the gradients of the scores.
class FusedAttention {
 public:
  // Prepares the part. `handle` must outlive the object; it is null with options.absent_device. The
  // failure quotes the library.
  static Failure Create(cudnnHandle_t handle, AttentionPart part, const AttentionShape& shape,
                        const AttentionMaskShape& mask, const FusedAttentionOptions& options,
                        std::unique_ptr<FusedAttention>& attention);

  int64_t workspace_bytes() const { return own_bytes_ + library_bytes_; }
  std::string choice() const;  // "engine 6", for logs

  // Compute the part. Asynchronous on the handle's stream; may be captured in a CUDA graph.
  // `workspace` is scratch, 256-byte aligned.
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
  std::vector<Descriptor> described_;  // the descriptors from which the plan was made
  Descriptor plan_;
  int64_t engine_ = -1;
  int64_t own_bytes_ = 0;  // the first part of the workspace
  int64_t library_bytes_ = 0;
};

}  // namespace muster::kernels::cuda
