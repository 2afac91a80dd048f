// Products of batches of matrices by cuBLASLt, with an optional operation on the product before it
// is stored. CUDA twin of kernels/matmul.h and linear.h.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/libraries.h"
#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

enum class Epilogue {
  kNone,
  kBias,      // + bias[columns]
  kRelu,      // relu(+ bias)
  kGelu,      // gelu(+ bias) by tanh; its input is stored in `preactivation`
  kGeluGrad,  // times the derivative of gelu (tanh form) at `preactivation`
};

// c[M, N] = a[M, K] b[K, N] (+ c), row-major, sums in f32.
struct MatMulShape {
  int64_t rows;              // M
  int64_t columns;           // N
  int64_t inner;             // K
  bool transpose_a = false;  // a is given as [K, M]
  bool transpose_b = false;  // b is given as [N, K]
  // Elements from one stored row to the next; 0: no gaps.
  int64_t a_row = 0;
  int64_t b_row = 0;
  int64_t c_row = 0;
  int64_t batch = 1;
  int64_t a_stride = 0;  // elements from one matrix of the batch to the next; 0 repeats
  int64_t b_stride = 0;
  int64_t c_stride = 0;
  Type operands = Type::kF32;
  Type product = Type::kF32;  // the operands' type, or f32
  bool adds = false;          // adds the product to c
  bool has_bias = false;      // for kRelu and kGelu
  int64_t alignment = 16;     // every address is a multiple of it; a power of two
  Epilogue epilogue = Epilogue::kNone;

  bool operator==(const MatMulShape&) const = default;
  std::string ToString() const;  // "bf16 512x768x3072 abT +gelu"
};

struct MatMulOptions {
  bool tf32 = false;          // f32 operands rounded to TF32
  bool deterministic = true;  // true: the library's first without atomics; false: the fastest
};

struct MatMulOperands {
  void* c;
  const void* a;
  const void* b;
  const void* bias = nullptr;
  void* preactivation = nullptr;  // [M, N], like c, without gaps; N a multiple of 8
};

// A prepared product. Compute-bound if M, N and K are at least some hundreds each.
class MatMul {
 public:
  // Prepares a product. `handle` must outlive it. The failure says why the library has no such
  // product, such as an epilogue that it lacks for these types.
  static Failure Create(cublasLtHandle_t handle, const MatMulShape& shape,
                        const MatMulOptions& options, std::unique_ptr<MatMul>& matmul);
  ~MatMul();

  const MatMulShape& shape() const { return shape_; }

  // Size of the workspace: enough for every algorithm that Choose() may choose.
  int64_t workspace_bytes() const { return workspace_bytes_; }

  // If not deterministic, runs each algorithm on this memory, waits, and keeps the fastest.
  // Overwrites c.
  Failure Choose(const MatMulOperands& operands, void* workspace, cudaStream_t stream);

  // "algorithm 1 of 8, 12.3 us", for logs.
  std::string choice() const;

  // Computes the product. Asynchronous on `stream`. `workspace` is scratch, 256-byte aligned.
  Failure Run(const MatMulOperands& operands, void* workspace, cudaStream_t stream);

 private:
  static constexpr int kAlgorithmsMax = 8;

  MatMul(cublasLtHandle_t handle, const MatMulShape& shape, const MatMulOptions& options)
      : handle_(handle), shape_(shape), options_(options) {}
  cublasStatus_t Describe();
  cublasStatus_t FindAlgorithms();
  Failure RunWith(const cublasLtMatmulAlgo_t& algorithm, const MatMulOperands& operands,
                  void* workspace, cudaStream_t stream);

  const cublasLtHandle_t handle_;
  const MatMulShape shape_;
  const MatMulOptions options_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
  cublasLtMatmulHeuristicResult_t algorithms_[kAlgorithmsMax];
  int algorithm_count_ = 0;
  int chosen_ = 0;
  float chosen_microseconds_ = 0;
  int64_t workspace_bytes_ = 0;
};

}  // namespace muster::kernels::cuda
