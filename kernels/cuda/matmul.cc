#include "kernels/cuda/matmul.h"

#include <algorithm>
#include <cstdio>
#include <limits>

namespace muster::kernels::cuda {
namespace {

#define MUSTER_RETURN_IF_CUBLAS_ERROR(expression)                                      \
  do {                                                                                 \
    if (const cublasStatus_t status = (expression); status != CUBLAS_STATUS_SUCCESS) { \
      return status;                                                                   \
    }                                                                                  \
  } while (false)

// Limit of a product's workspace: NVIDIA's recommendation for Hopper. The memory planner shares the
// workspace among all products.
constexpr uint64_t kMatMulWorkspaceBytesMax = 32 << 20;

Failure FailureOf(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? nullptr : cublasLtGetStatusString(status);
}

Failure FailureOf(cudaError_t error) {
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

cudaDataType_t MatMulDataType(Type type) {
  switch (type) {
    case Type::kBf16:
      return CUDA_R_16BF;
    case Type::kF16:
      return CUDA_R_16F;
    case Type::kF32:
    case Type::kI32:
      break;
  }
  return CUDA_R_32F;
}

const char* Name(Type type) {
  return type == Type::kBf16 ? "bf16" : type == Type::kF16 ? "f16" : "f32";
}

// The library is column-major, so it sees the transpose of a row-major matrix.
cublasStatus_t MakeLayout(cublasLtMatrixLayout_t& layout, Type type, int64_t rows, int64_t columns,
                          int64_t row, int64_t batch, int64_t stride) {
  MUSTER_RETURN_IF_CUBLAS_ERROR(
      cublasLtMatrixLayoutCreate(&layout, MatMulDataType(type), static_cast<uint64_t>(columns),
                                 static_cast<uint64_t>(rows), row == 0 ? columns : row));
  const auto count = static_cast<int32_t>(batch);
  MUSTER_RETURN_IF_CUBLAS_ERROR(cublasLtMatrixLayoutSetAttribute(
      layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
  return cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                          &stride, sizeof(stride));
}

cublasLtEpilogue_t EpilogueOf(const MatMulShape& shape) {
  switch (shape.epilogue) {
    case Epilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kRelu:
      return shape.has_bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case Epilogue::kGelu:
      return shape.has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::kGeluGrad:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

bool UsesBias(const MatMulShape& shape) {
  return shape.epilogue == Epilogue::kBias || shape.has_bias;
}

bool UsesPreactivation(const MatMulShape& shape) {
  return shape.epilogue == Epilogue::kGelu || shape.epilogue == Epilogue::kGeluGrad;
}

}  // namespace

std::string MatMulShape::ToString() const {
  static constexpr const char* kEpilogues[] = {"", " +bias", " +relu", " +gelu", " *gelu'"};
  std::string text = Name(operands);
  if (product != operands) text += std::string("->") + Name(product);
  text += " ";
  if (batch > 1) text += std::to_string(batch) + "x ";
  text += std::to_string(rows) + "x" + std::to_string(columns) + "x" + std::to_string(inner);
  text += transpose_a ? " aT" : " a";
  text += transpose_b ? "bT" : "b";
  return text + kEpilogues[static_cast<int>(epilogue)];
}

Failure MatMul::Create(cublasLtHandle_t handle, const MatMulShape& shape,
                       const MatMulOptions& options, std::unique_ptr<MatMul>& matmul) {
  if (std::max({shape.rows, shape.columns, shape.inner, shape.batch}) >
      std::numeric_limits<int32_t>::max()) {
    return "a dimension of the product is beyond 2^31";
  }
  std::unique_ptr<MatMul> made(new MatMul(handle, shape, options));
  if (Failure failure = FailureOf(made->Describe())) return failure;
  if (Failure failure = FailureOf(made->FindAlgorithms())) return failure;
  matmul = std::move(made);
  return nullptr;
}

MatMul::~MatMul() {
  if (a_ != nullptr) cublasLtMatrixLayoutDestroy(a_);
  if (b_ != nullptr) cublasLtMatrixLayoutDestroy(b_);
  if (c_ != nullptr) cublasLtMatrixLayoutDestroy(c_);
  if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
}

// cᵀ = bᵀ aᵀ: the library's first operand is b. The rows of its product are our columns, along
// which a bias is laid out.
cublasStatus_t MatMul::Describe() {
  const MatMulShape& s = shape_;
  const bool tf32 = options_.tf32 && s.operands == Type::kF32;
  MUSTER_RETURN_IF_CUBLAS_ERROR(cublasLtMatmulDescCreate(
      &operation_, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    return cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof(value));
  };
  const cublasOperation_t of_b = s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t of_a = s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  MUSTER_RETURN_IF_CUBLAS_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, of_b));
  MUSTER_RETURN_IF_CUBLAS_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSB, of_a));
  MUSTER_RETURN_IF_CUBLAS_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(s)));
  if (UsesBias(s)) {
    const auto type = static_cast<int32_t>(MatMulDataType(s.operands));
    MUSTER_RETURN_IF_CUBLAS_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type));
  }
  if (UsesPreactivation(s)) {
    MUSTER_RETURN_IF_CUBLAS_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, s.columns));
  }
  MUSTER_RETURN_IF_CUBLAS_ERROR(MakeLayout(a_, s.operands, s.transpose_a ? s.inner : s.rows,
                                           s.transpose_a ? s.rows : s.inner, s.a_row, s.batch,
                                           s.a_stride));
  MUSTER_RETURN_IF_CUBLAS_ERROR(MakeLayout(b_, s.operands, s.transpose_b ? s.columns : s.inner,
                                           s.transpose_b ? s.inner : s.columns, s.b_row, s.batch,
                                           s.b_stride));
  return MakeLayout(c_, s.product, s.rows, s.columns, s.c_row, s.batch, s.c_stride);
}

cublasStatus_t MatMul::FindAlgorithms() {
  // The available algorithms depend on the alignment of the epilogue's pointers. Set an address
  // with the alignment of every tensor until Run() sets the real one. Do that only for pointers
  // that Run() sets. Algorithms that sum in parts write even to a pointer that their epilogue does
  // not use, and others refuse to run with one.
  const auto promise = [&](cublasLtMatmulDescAttributes_t pointer) {
    constexpr uintptr_t kAlignedTo16 = 0x1010;
    return cublasLtMatmulDescSetAttribute(operation_, pointer, &kAlignedTo16, sizeof(kAlignedTo16));
  };
  if (UsesBias(shape_)) {
    MUSTER_RETURN_IF_CUBLAS_ERROR(promise(CUBLASLT_MATMUL_DESC_BIAS_POINTER));
  }
  if (UsesPreactivation(shape_)) {
    MUSTER_RETURN_IF_CUBLAS_ERROR(promise(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER));
  }
  cublasLtMatmulPreference_t preference;
  MUSTER_RETURN_IF_CUBLAS_ERROR(cublasLtMatmulPreferenceCreate(&preference));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
  };
  const auto find = [&] {
    MUSTER_RETURN_IF_CUBLAS_ERROR(
        set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMatMulWorkspaceBytesMax));
    for (auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      MUSTER_RETURN_IF_CUBLAS_ERROR(set(attribute, static_cast<uint32_t>(shape_.alignment)));
    }
    if (options_.deterministic) {
      // Exclude in-place reduction: it would add the parts of a sum in the order in which they
      // finish.
      const uint32_t schemes =
          CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
      MUSTER_RETURN_IF_CUBLAS_ERROR(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes));
    }
    return cublasLtMatmulAlgoGetHeuristic(handle_, operation_, b_, a_, c_, c_, preference,
                                          options_.deterministic ? 1 : kAlgorithmsMax, algorithms_,
                                          &algorithm_count_);
  };
  const cublasStatus_t status = find();
  cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (algorithm_count_ == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (int i = 0; i < algorithm_count_; ++i) {
    workspace_bytes_ =
        std::max(workspace_bytes_, static_cast<int64_t>(algorithms_[i].workspaceSize));
  }
  return CUBLAS_STATUS_SUCCESS;
}

Failure MatMul::Choose(const MatMulOperands& operands, void* workspace, cudaStream_t stream) {
  if (algorithm_count_ == 1) return nullptr;
  constexpr int kRuns = 5;
  cudaEvent_t start, end;
  if (Failure failure = FailureOf(cudaEventCreate(&start))) return failure;
  if (Failure failure = FailureOf(cudaEventCreate(&end))) {
    cudaEventDestroy(start);
    return failure;
  }
  float best = std::numeric_limits<float>::max();
  for (int i = 0; i < algorithm_count_; ++i) {
    const cublasLtMatmulAlgo_t& algorithm = algorithms_[i].algo;
    // Skip algorithms that do not run.
    bool runs = RunWith(algorithm, operands, workspace, stream) == nullptr;
    runs = runs && cudaEventRecord(start, stream) == cudaSuccess;
    for (int run = 0; run < kRuns && runs; ++run) {
      runs = RunWith(algorithm, operands, workspace, stream) == nullptr;
    }
    float milliseconds = 0;
    runs = runs && cudaEventRecord(end, stream) == cudaSuccess &&
           cudaEventSynchronize(end) == cudaSuccess &&
           cudaEventElapsedTime(&milliseconds, start, end) == cudaSuccess;
    if (runs && milliseconds < best) {
      best = milliseconds;
      chosen_ = i;
      chosen_microseconds_ = 1000 * milliseconds / kRuns;
    }
  }
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  return best < std::numeric_limits<float>::max() ? nullptr : "no algorithm runs";
}

std::string MatMul::choice() const {
  if (algorithm_count_ == 1) return "the library's first algorithm";
  char text[64];
  std::snprintf(text, sizeof(text), "algorithm %d of %d, %.1f us", chosen_ + 1, algorithm_count_,
                static_cast<double>(chosen_microseconds_));
  return text;
}

Failure MatMul::Run(const MatMulOperands& operands, void* workspace, cudaStream_t stream) {
  return RunWith(algorithms_[chosen_].algo, operands, workspace, stream);
}

Failure MatMul::RunWith(const cublasLtMatmulAlgo_t& algorithm, const MatMulOperands& operands,
                        void* workspace, cudaStream_t stream) {
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    return FailureOf(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof(value)));
  };
  if (UsesBias(shape_)) {
    if (Failure failure = set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias)) return failure;
  }
  if (UsesPreactivation(shape_)) {
    if (Failure failure = set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.preactivation)) {
      return failure;
    }
  }
  const float alpha = 1, beta = shape_.adds ? 1 : 0;
  return FailureOf(cublasLtMatmul(handle_, operation_, &alpha, operands.b, b_, operands.a, a_,
                                  &beta, operands.c, c_, operands.c, c_, &algorithm, workspace,
                                  static_cast<size_t>(workspace_bytes_), stream));
}

}  // namespace muster::kernels::cuda
