// The kernels of a GPU, in one table for all ops.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/out_of_range.h"
#include "kernels/cuda/type.h"
#include "lib/engine/cuda/attention_choice.h"
#include "lib/engine/cuda/cuda_layouts.h"
#include "lib/engine/kernel.h"

namespace muster {

namespace cuda = kernels::cuda;

// Requires: a type that has elements, so not DTYPE_STATE.
cuda::Type TypeOf(v1::DType dtype);

// Return INTERNAL with the library's message, or RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED", if
// memory is missing.
absl::Status StatusOf(cudaError_t error);
absl::Status StatusOf(cuda::Failure failure);

// Returns whether the work is done. `answer` is the result of cudaStreamQuery() or
// cudaEventQuery().
absl::StatusOr<bool> HasEnded(cudaError_t answer);

// The stream and library handles of kernels, and the data that they read besides tensors. The data
// are in device memory and live as long as the executor.
struct CudaContext {
  cudaStream_t stream = nullptr;
  cublasLtHandle_t cublas = nullptr;
  cudnnHandle_t cudnn = nullptr;  // enqueues on `stream`
  const cuda::RunNumbers* numbers = nullptr;
  const int64_t* counted_targets = nullptr;  // one per graph input; -1: count those of the run
  cuda::OutOfRange* out_of_range = nullptr;  // in device memory
  bool tf32 = false;
  bool deterministic = true;
  bool has_gradients = false;    // whether the graph has gradients
  int synchronised_devices = 1;  // see Executor::Options

  // Returns a product, prepared once for all nodes of its shape.
  absl::StatusOr<std::shared_ptr<cuda::MatMul>> Prepare(const cuda::MatMulShape& shape);

  // Chooses the algorithm of `product` on this memory at the first call, and logs it.
  void ChooseOnce(const std::shared_ptr<cuda::MatMul>& product,
                  const cuda::MatMulOperands& operands, void* workspace);

  // Returns the choice of ChooseAttention(), made once for all nodes of a shape.
  std::shared_ptr<const FusedAttentions> Choose(const cuda::AttentionShape& shape,
                                                const cuda::AttentionMaskShape& mask);

 private:
  struct Product {
    std::shared_ptr<cuda::MatMul> matmul;
    bool is_chosen = false;
  };
  struct Attention {
    AttentionUse use;
    std::shared_ptr<const FusedAttentions> choice;
  };
  std::vector<Product> products_;
  std::vector<Attention> attentions_;
};

// The input of a node's planner. It lives only during the call: runs keep copies of what they need.
struct CudaNode : TypedNode {
  CudaContext& context;

  const std::vector<int64_t>& shape(int input) const { return inputs[input].shape; }
  int64_t elements(int input) const { return inputs[input].elements(); }
  // rows() is the product of all dimensions except the last; columns() is the last.
  int64_t rows(int input) const { return elements(input) / columns(input); }
  int64_t columns(int input) const { return inputs[input].shape.back(); }
  cuda::Type type(int input) const;
  cuda::Type output_type(int output) const;
};

using CudaPlanner = absl::StatusOr<PlannedNode> (*)(const CudaNode& node);
using CudaKernelTable = absl::flat_hash_map<std::string, CudaPlanner>;

// Each family adds its ops.
void AddMatrixKernels(CudaKernelTable& table);
void AddImageKernels(CudaKernelTable& table);
void AddNormalisationKernels(CudaKernelTable& table);
void AddElementwiseKernels(CudaKernelTable& table);
void AddReductionKernels(CudaKernelTable& table);
void AddShapeKernels(CudaKernelTable& table);
void AddSequenceKernels(CudaKernelTable& table);
void AddRecurrentKernels(CudaKernelTable& table);
void AddLossKernels(CudaKernelTable& table);
void AddCollectiveKernels(CudaKernelTable& table);

class CudaKernels : public KernelRegistry {
 public:
  // `context` outlives the kernels and their runs.
  explicit CudaKernels(CudaContext& context);

  absl::StatusOr<PlannedNode> Plan(const TypedNode& node) override;
  absl::StatusOr<PlannedNode> PlanReorder(const TensorType& type, Layout from, Layout to) override;
  int64_t Bytes(const TensorType& type, Layout layout) override { return CudaBytes(type, layout); }
  Layout ParameterLayout(const TensorType& type) override { return CudaParameterLayout(type); }
  bool ReadsAs(Layout from, Layout to) override { return CudaReadsAs(from, to); }
  bool Fetches(Layout layout) override { return CudaFetches(layout); }

 private:
  CudaContext& context_;
  CudaKernelTable table_;
};

}  // namespace muster
