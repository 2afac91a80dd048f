// Two-dimensional cross-correlation and its derivatives, by cuDNN. CUDA twins of
// kernels/convolution.h.
//
//   x, dx   T[B, C, H, W]      w, dw   T[O, C/groups, K, L]      y, dy   T[B, O, H', W']
//
// With ChannelOrder::kLast, all of them have their channels last.
#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

struct ConvolutionShape {
  int64_t batch;
  int64_t channels;
  std::array<int64_t, 2> image;  // H, W
  int64_t outputs;
  std::array<int64_t, 2> output;  // H', W'
  std::array<int64_t, 2> kernel;
  std::array<int64_t, 2> strides;
  std::array<int64_t, 2> padding;  // the same on both sides
  std::array<int64_t, 2> dilations;
  int64_t groups;
  ChannelOrder order;
  Type type;

  bool operator==(const ConvolutionShape&) const = default;
  std::string ToString() const;
};

enum class ConvolutionPart {
  kForward,     // y from x and w
  kGradInput,   // dx from dy and w
  kGradWeight,  // dw from dy and x
};

struct ConvolutionOptions {
  bool tf32 = false;
  bool deterministic = true;  // true: the first algorithm that repeats and runs; false: the fastest
};

// One prepared part of a convolution. Compute-bound with many channels.
class Convolution {
 public:
  // Asks the library for its algorithms. `handle` must outlive the object.
  static Failure Create(cudnnHandle_t handle, ConvolutionPart part, const ConvolutionShape& shape,
                        const ConvolutionOptions& options,
                        std::unique_ptr<Convolution>& convolution);
  ~Convolution();

  // Size of the workspace: enough for every algorithm that Choose() may choose.
  int64_t workspace_bytes() const { return workspace_bytes_; }

  // Runs algorithms on this memory and keeps the fastest. If deterministic, keeps the first that
  // runs, because the library proposes some that then fail. Overwrites `to`. The arguments are
  // those of Run().
  Failure Choose(void* to, const void* left, const void* right, void* workspace);

  std::string choice() const;  // for logs

  // Computes the part. The arguments are (y, x, w) for kForward, (dx, dy, w) for kGradInput, and
  // (dw, dy, x) for kGradWeight. Asynchronous on the handle's stream. `workspace` is scratch,
  // 256-byte aligned.
  Failure Run(void* to, const void* left, const void* right, void* workspace);

 private:
  Convolution(cudnnHandle_t handle, ConvolutionPart part, const ConvolutionShape& shape,
              const ConvolutionOptions& options)
      : handle_(handle), part_(part), shape_(shape), options_(options) {}
  cudnnStatus_t Describe();
  cudnnStatus_t PickAlgorithm();
  cudnnStatus_t TimeAlgorithms(void* to, const void* left, const void* right, void* workspace);

  struct Candidate {
    int algorithm = 0;
    cudnnMathType_t math = CUDNN_DEFAULT_MATH;
    int64_t workspace_bytes = 0;
    float milliseconds = -1;  // -1: not measured
  };

  // Whether f32 operands must stay f32: tensor cores would round them to TF32.
  bool is_f32_alone() const { return shape_.type == Type::kF32 && !options_.tf32; }

  // Keeps the candidates that fit the workspace, are admitted (convolution_choice.h) and are
  // deterministic if required, and takes the first. Returns false if there is none; an earlier
  // choice then stays.
  template <typename Performance>
  bool Pick(const Performance* found, int count, int64_t workspace_bytes_max);
  cudnnStatus_t Take(const Candidate& candidate);

  // Asks for the workspace with the math type set in `operation_`.
  cudnnStatus_t WorkspaceBytes(cudnnConvolutionFwdAlgo_t algorithm, size_t& bytes) const;
  cudnnStatus_t WorkspaceBytes(cudnnConvolutionBwdDataAlgo_t algorithm, size_t& bytes) const;
  cudnnStatus_t WorkspaceBytes(cudnnConvolutionBwdFilterAlgo_t algorithm, size_t& bytes) const;

  const cudnnHandle_t handle_;
  const ConvolutionPart part_;
  const ConvolutionShape shape_;
  const ConvolutionOptions options_;
  cudnnTensorDescriptor_t x_ = nullptr, y_ = nullptr;
  cudnnFilterDescriptor_t w_ = nullptr;
  cudnnConvolutionDescriptor_t operation_ = nullptr;
  std::vector<Candidate> candidates_;
  Candidate chosen_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace muster::kernels::cuda
