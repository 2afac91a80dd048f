#include "kernels/cuda/fused_attention.h"

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "kernels/cuda/cudnn_failure.h"

namespace muster::kernels::cuda {
namespace {

// Numbers by which the library identifies the tensors in memory.
enum Id : int64_t {
  kQ = 1,
  kK,
  kV,
  kY,
  kLse,
  kDy,
  kDq,
  kDk,
  kDv,
  kMask,
  kRowSums,  // of dy y, f32[B, H, T], in the workspace
  kDqSums,   // f32[B, H, T, C], in the workspace
  kScale,    // scalars, from here on
  kOne,
  kUnseen,
  kFirstVirtual = 100,
};

constexpr float kOneValue = 1;
// The score of a key that a query does not see. The library recognises a causal mask by this value.
constexpr float kUnseenValue = -std::numeric_limits<float>::infinity();

constexpr int64_t kVersionMin = 91100;
constexpr int64_t kRowsMultiple = 128;
// Attentions that need a larger workspace are refused. Deterministic GPT-2 with 1,024 tokens needs
// 25 MB per sample.
constexpr int64_t kFusedWorkspaceBytesMax = int64_t{2} << 30;

// Rounds up to a multiple of 256 bytes, the alignment of the parts of a workspace.
int64_t Aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Returns the bytes of f32[B, H, T, columns] in a workspace.
int64_t RowBytes(const AttentionShape& shape, int64_t columns) {
  return Aligned(shape.batch * shape.heads * shape.queries * columns * int64_t{sizeof(float)});
}

cudnnDataType_t AttentionDataType(Type type) {
  return type == Type::kBf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

}  // namespace

Failure WhyNotFused(const AttentionShape& s, int64_t version, int capability) {
  const auto is_head = [](int64_t channels) { return channels % 8 == 0 && channels <= 128; };
  if (s.type != Type::kBf16 && s.type != Type::kF16) return "it is for bf16 and f16";
  if (!is_head(s.head_channels) || !is_head(s.head_values)) {
    return "it is for heads of at most 128 channels, a multiple of 8";
  }
  if (s.queries % kRowsMultiple != 0 || s.keys % kRowsMultiple != 0) {
    return "it is for multiples of 128 queries and keys";
  }
  if (s.causal && s.queries != s.keys) return "causal, it is for as many queries as keys";
  if (!(s.scale > 0)) return "it is for a positive scale";
  if (version < kVersionMin) return "cuDNN is older than 9.11";
  if (capability < 80 || capability >= 100) return "the GPU is neither Ampere nor Hopper";
  return nullptr;
}

std::string ToString(const AttentionShape& s) {
  char text[128];
  const char* type = s.type == Type::kBf16 ? "bf16" : s.type == Type::kF16 ? "f16" : "f32";
  int length = std::snprintf(text, sizeof(text), "%s %ldx%ldx%ldx%ld", type, s.batch, s.heads,
                             s.queries, s.head_channels);
  if (s.keys != s.queries) {
    length += std::snprintf(text + length, sizeof(text) - length, " on %ld keys", s.keys);
  }
  if (s.causal) std::snprintf(text + length, sizeof(text) - length, ", causal");
  return text;
}

// Builds the operations that the library computes, in order. Keeps the first error and does nothing
// after it.
class FusedAttention::Graph {
 public:
  using Tensor = cudnnBackendDescriptor_t;
  using Sizes = std::array<int64_t, 4>;

  Graph(const AttentionShape& shape, const AttentionMaskShape& mask)
      : s_(shape), mask_(mask), type_(AttentionDataType(shape.type)) {}

  cudnnStatus_t status() const { return status_; }

  void Forward();
  void Backward(bool deterministic);

  // Describes a GPU that is absent.
  cudnnBackendDescriptor_t Device(const char* json) {
    const cudnnBackendDescriptor_t device = New(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    SetAll(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
           std::span<const char>(json, std::strlen(json) + 1));
    return Finalized(device);
  }

  // The library's suggested plans for the handle's device, or for `device` if that is not null, the
  // best first.
  std::vector<cudnnBackendDescriptor_t> Suggestions(cudnnHandle_t handle,
                                                    cudnnBackendDescriptor_t device) {
    const cudnnBackendDescriptor_t graph = New(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (device == nullptr) {
      Set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
    }
    SetAll(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
           std::span<const cudnnBackendDescriptor_t>(operations_));
    Finalized(graph);
    const cudnnBackendDescriptor_t heuristic = New(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    Operand(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    Set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
    if (device != nullptr) Operand(heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
    Finalized(heuristic);
    int64_t count = 0;
    Get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, count, nullptr);
    std::vector<cudnnBackendDescriptor_t> suggestions;
    for (int64_t i = 0; i < count; ++i) {
      suggestions.push_back(New(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    }
    Get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, count,
        suggestions.data());
    suggestions.resize(Ok() ? count : 0);
    return suggestions;
  }

  // Returns the library's number of the suggested engine, or -1 if it gives none.
  int64_t Engine(cudnnBackendDescriptor_t suggestion) {
    cudnnBackendDescriptor_t engine = New(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t count = 0, number = -1;
    Get(suggestion, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, count, &engine);
    Get(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, count, &number);
    return number;
  }

  std::vector<Descriptor> Release() { return std::move(owned_); }

 private:
  bool Ok() const { return status_ == CUDNN_STATUS_SUCCESS; }

  cudnnBackendDescriptor_t New(cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t made = nullptr;
    if (Ok()) status_ = cudnnBackendCreateDescriptor(type, &made);
    if (made != nullptr) owned_.emplace_back(made);
    return made;
  }

  template <typename T>
  void SetAll(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t attribute,
              cudnnBackendAttributeType_t type, std::span<const T> values) {
    if (Ok()) {
      status_ = cudnnBackendSetAttribute(descriptor, attribute, type,
                                         static_cast<int64_t>(values.size()), values.data());
    }
  }

  template <typename T>
  void Set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t attribute,
           cudnnBackendAttributeType_t type, const T& value) {
    SetAll(descriptor, attribute, type, std::span<const T>(&value, 1));
  }

  void Get(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t attribute,
           cudnnBackendAttributeType_t type, int64_t count_max, int64_t& count, void* values) {
    if (Ok()) {
      status_ = cudnnBackendGetAttribute(descriptor, attribute, type, count_max, &count, values);
    }
  }

  cudnnBackendDescriptor_t Finalized(cudnnBackendDescriptor_t descriptor) {
    if (Ok()) status_ = cudnnBackendFinalize(descriptor);
    return descriptor;
  }

  // The tensor [B, H, rows, columns] of a matrix. Its rows have `row` elements, with contiguous
  // heads.
  Tensor Matrix(Id id, int64_t rows, int64_t columns, int64_t row) {
    return Make(id, type_, {s_.batch, s_.heads, rows, columns}, {rows * row, columns, row, 1});
  }
  // The same matrix, viewed as [B, H, columns, rows].
  Tensor Transposed(Id id, int64_t rows, int64_t columns, int64_t row) {
    return Make(id, type_, {s_.batch, s_.heads, columns, rows}, {rows * row, columns, 1, row});
  }
  // f32[B, H, rows, columns] without gaps.
  Tensor Sums(Id id, int64_t rows, int64_t columns) {
    return Make(id, CUDNN_DATA_FLOAT, {s_.batch, s_.heads, rows, columns}, Packed(rows, columns));
  }
  Tensor Number(Id id) {
    const Tensor tensor = Begin(id, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1});
    Set(tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, true);
    return Finalized(tensor);
  }
  // A tensor that is never written to memory.
  Tensor Virtual(int64_t rows, int64_t columns, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return VirtualOf(rows, columns, Packed(rows, columns), type);
  }
  Tensor VirtualOf(int64_t rows, int64_t columns, const Sizes& strides, cudnnDataType_t type) {
    const Tensor tensor =
        Begin(next_virtual_++, type, {s_.batch, s_.heads, rows, columns}, strides);
    Set(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true);
    return Finalized(tensor);
  }
  Tensor Scores(cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return Virtual(s_.queries, s_.keys, type);
  }
  Sizes Packed(int64_t rows, int64_t columns) const {
    return {s_.heads * rows * columns, rows * columns, columns, 1};
  }

  Tensor Begin(int64_t id, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides) {
    const Tensor tensor = New(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    Set(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
    Set(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
    Set(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t{16});
    SetAll(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::span<const int64_t>(sizes));
    SetAll(tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::span<const int64_t>(strides));
    return tensor;
  }
  Tensor Make(int64_t id, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides) {
    return Finalized(Begin(id, type, sizes, strides));
  }

  // An elementwise operation on x, and on b and t if they are set.
  struct Pointwise {
    cudnnPointwiseMode_t mode;
    Tensor x;
    Tensor b = nullptr;
    Tensor t = nullptr;
    int64_t axis = -1;  // only for an index
    cudnnDataType_t precision = CUDNN_DATA_FLOAT;
  };
  Tensor Apply(const Pointwise& p, Tensor y) {
    const cudnnBackendDescriptor_t function = New(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    Set(function, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, p.mode);
    Set(function, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, p.precision);
    if (p.axis >= 0) Set(function, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, p.axis);
    Finalized(function);
    const cudnnBackendDescriptor_t operation = New(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    Operand(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function);
    Operand(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, p.x);
    if (p.b != nullptr) Operand(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, p.b);
    if (p.t != nullptr) Operand(operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, p.t);
    Operand(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    operations_.push_back(Finalized(operation));
    return y;
  }

  Tensor Multiply(Tensor a, Tensor b, Tensor c) {
    const cudnnBackendDescriptor_t product = New(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    Set(product, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    Finalized(product);
    const cudnnBackendDescriptor_t operation = New(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    Operand(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    Operand(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    Operand(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    Operand(operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, product);
    operations_.push_back(Finalized(operation));
    return c;
  }

  // Reduces over the last dimension.
  Tensor Reduce(cudnnReduceTensorOp_t by, Tensor x, Tensor y) {
    const cudnnBackendDescriptor_t reduction = New(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    Set(reduction, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, by);
    Set(reduction, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    Finalized(reduction);
    const cudnnBackendDescriptor_t operation = New(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    Operand(operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    Operand(operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    Operand(operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction);
    operations_.push_back(Finalized(operation));
    return y;
  }

  // Views the same elements with other sizes and strides.
  Tensor Reshape(Tensor x, Tensor y) {
    const cudnnBackendDescriptor_t operation = New(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    Operand(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    Operand(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    operations_.push_back(Finalized(operation));
    return y;
  }

  void Operand(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t attribute,
               cudnnBackendDescriptor_t operand) {
    Set(of, attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, operand);
  }

  // q k^T scale + mask; -inf for keys later than the query sees.
  Tensor Scaled(Tensor q, Tensor k_transposed) {
    const Tensor product = Multiply(q, k_transposed, Scores());
    const Tensor scaled = Apply({CUDNN_POINTWISE_MUL, product, Number(kScale)}, Scores());
    if (mask_.batch == 0) return scaled;
    // A mask with one row for all queries needs a stride of 0: backward in version 9.19 does not
    // repeat a dimension of size 1.
    const int64_t of_head = mask_.queries * s_.keys;
    const Tensor mask =
        Make(kMask, CUDNN_DATA_FLOAT, {mask_.batch, mask_.heads, s_.queries, s_.keys},
             {mask_.heads * of_head, of_head, mask_.queries == 1 ? 0 : s_.keys, 1});
    return Apply({CUDNN_POINTWISE_ADD, scaled, mask}, Scores());
  }
  Tensor Masked(Tensor scores) {
    if (!s_.causal) return scores;
    const Tensor row = Apply({.mode = CUDNN_POINTWISE_GEN_INDEX, .x = scores, .axis = 2},
                             Scores(CUDNN_DATA_INT32));
    const Tensor column = Apply({.mode = CUDNN_POINTWISE_GEN_INDEX, .x = scores, .axis = 3},
                                Scores(CUDNN_DATA_INT32));
    const Tensor seen = Apply(
        {.mode = CUDNN_POINTWISE_CMP_GE, .x = row, .b = column, .precision = CUDNN_DATA_BOOLEAN},
        Scores(CUDNN_DATA_BOOLEAN));
    return Apply({CUDNN_POINTWISE_BINARY_SELECT, scores, Number(kUnseen), seen}, Scores());
  }
  // Views scores[B, H, T, S] as [B, H, S, T], rounded for a product.
  Tensor Turned(Tensor scores) {
    return Reshape(
        scores,
        VirtualOf(s_.keys, s_.queries,
                  {s_.heads * s_.queries * s_.keys, s_.queries * s_.keys, 1, s_.keys}, type_));
  }

  const AttentionShape& s_;
  const AttentionMaskShape& mask_;
  const cudnnDataType_t type_;
  cudnnStatus_t status_ = CUDNN_STATUS_SUCCESS;
  std::vector<Descriptor> owned_;
  std::vector<cudnnBackendDescriptor_t> operations_;
  int64_t next_virtual_ = kFirstVirtual;
};

void FusedAttention::Graph::Forward() {
  const int64_t t = s_.queries, s = s_.keys, c = s_.head_channels, d = s_.head_values;
  const Tensor q = Matrix(kQ, t, c, s_.q_row);
  const Tensor k_transposed = Transposed(kK, s, c, s_.k_row);
  const Tensor v = Matrix(kV, s, d, s_.v_row);
  const Tensor y = Matrix(kY, t, d, s_.heads * d);

  const Tensor scores = Masked(Scaled(q, k_transposed));
  const Tensor max = Reduce(CUDNN_REDUCE_TENSOR_MAX, scores, Virtual(t, 1));
  const Tensor below = Apply({CUDNN_POINTWISE_SUB, scores, max}, Scores());
  const Tensor exp = Apply({CUDNN_POINTWISE_EXP, below}, Scores());
  const Tensor sum = Reduce(CUDNN_REDUCE_TENSOR_ADD, exp, Virtual(t, 1));
  const Tensor log = Apply({CUDNN_POINTWISE_LOG, sum}, Virtual(t, 1));
  Apply({CUDNN_POINTWISE_ADD, max, log}, Sums(kLse, t, 1));
  const Tensor p = Apply({CUDNN_POINTWISE_DIV, exp, sum}, Scores(type_));
  Multiply(p, v, y);
}

void FusedAttention::Graph::Backward(bool deterministic) {
  const int64_t t = s_.queries, s = s_.keys, c = s_.head_channels, d = s_.head_values;
  const Tensor q = Matrix(kQ, t, c, s_.q_row);
  const Tensor k_transposed = Transposed(kK, s, c, s_.k_row);
  const Tensor v_transposed = Transposed(kV, s, d, s_.v_row);
  const Tensor y = Matrix(kY, t, d, s_.heads * d);
  const Tensor dy = Matrix(kDy, t, d, s_.heads * d);
  const Tensor lse = Sums(kLse, t, 1);

  const Tensor dy_y = Apply({CUDNN_POINTWISE_MUL, dy, y}, Virtual(t, d));
  const Tensor row_sums = Apply(
      {CUDNN_POINTWISE_MUL, Reduce(CUDNN_REDUCE_TENSOR_ADD, dy_y, Virtual(t, 1)), Number(kOne)},
      Sums(kRowSums, t, 1));

  const Tensor scores = Scaled(q, k_transposed);
  const Tensor below = Masked(Apply({CUDNN_POINTWISE_SUB, scores, lse}, Scores()));
  const Tensor p = Apply({CUDNN_POINTWISE_EXP, below}, Scores());
  Multiply(Turned(p), dy, Matrix(kDv, s, d, s_.v_row));

  const Tensor dp = Multiply(dy, v_transposed, Scores());
  const Tensor centered = Apply({CUDNN_POINTWISE_SUB, dp, row_sums}, Scores());
  const Tensor of_scores = Apply({CUDNN_POINTWISE_MUL, centered, p}, Scores());
  const Tensor ds = Apply({CUDNN_POINTWISE_MUL, of_scores, Number(kScale)}, Scores());
  Multiply(Turned(ds), q, Matrix(kDk, s, c, s_.k_row));

  const Tensor k = Reshape(k_transposed, VirtualOf(s, c, {s * s_.k_row, c, s_.k_row, 1}, type_));
  const Tensor dq = Matrix(kDq, t, c, s_.q_row);
  if (deterministic) {
    Multiply(ds, k, dq);
  } else {
    Apply({CUDNN_POINTWISE_IDENTITY, Multiply(ds, k, Sums(kDqSums, t, c))}, dq);
  }
}

Failure FusedAttention::Create(cudnnHandle_t handle, AttentionPart part,
                               const AttentionShape& shape, const AttentionMaskShape& mask,
                               const FusedAttentionOptions& options,
                               std::unique_ptr<FusedAttention>& attention) {
  std::unique_ptr<FusedAttention> made(new FusedAttention(handle, shape, mask));
  Graph graph(made->shape_, made->mask_);
  if (part == AttentionPart::kForward) {
    graph.Forward();
  } else {
    graph.Backward(options.deterministic);
    made->own_bytes_ =
        RowBytes(shape, 1) + (options.deterministic ? 0 : RowBytes(shape, shape.head_channels));
  }
  if (Failure failure = made->Plan(graph, options.absent_device)) return failure;
  made->described_ = graph.Release();
  attention = std::move(made);
  return nullptr;
}

// Keeps the first suggestion that the library can run; it orders them by expected speed.
Failure FusedAttention::Plan(Graph& graph, const char* absent_device) {
  const cudnnBackendDescriptor_t device =
      absent_device == nullptr ? nullptr : graph.Device(absent_device);
  const std::vector<cudnnBackendDescriptor_t> suggestions = graph.Suggestions(handle_, device);
  if (Failure failure = FailureOf(graph.status())) return failure;
  Failure failure = "it suggests no kernel";
  for (cudnnBackendDescriptor_t suggestion : suggestions) {
    cudnnBackendDescriptor_t made = nullptr;
    cudnnStatus_t status =
        cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &made);
    Descriptor plan(made);
    const auto set = [&](cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type,
                         const void* value) {
      if (status == CUDNN_STATUS_SUCCESS) {
        status = cudnnBackendSetAttribute(made, attribute, type, 1, value);
      }
    };
    set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, &suggestion);
    if (device != nullptr) {
      set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, &device);
    } else {
      set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &handle_);
    }
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendFinalize(made);
    int64_t count = 0, bytes = 0;
    if (status == CUDNN_STATUS_SUCCESS) {
      status = cudnnBackendGetAttribute(made, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                        CUDNN_TYPE_INT64, 1, &count, &bytes);
    }
    failure = FailureOf(status);
    if (failure == nullptr && own_bytes_ + bytes > kFusedWorkspaceBytesMax) {
      failure = "it wants more than 2 GiB of workspace";
    }
    if (failure != nullptr) continue;
    library_bytes_ = bytes;
    engine_ = graph.Engine(suggestion);
    plan_ = std::move(plan);
    return nullptr;
  }
  return failure;
}

std::string FusedAttention::choice() const { return "engine " + std::to_string(engine_); }

Failure FusedAttention::Forward(void* y, float* lse, const AttentionInputs& inputs,
                                void* workspace) const {
  std::vector<Tensor> tensors = {
      {kQ, inputs.q}, {kK, inputs.k}, {kV, inputs.v}, {kY, y}, {kLse, lse}};
  if (mask_.batch > 0) tensors.push_back({kMask, inputs.mask.data});
  return Run(tensors, static_cast<std::byte*>(workspace));
}

Failure FusedAttention::Backward(const AttentionGradients& gradients, const void* dy, const void* y,
                                 const float* lse, const AttentionInputs& inputs,
                                 void* workspace) const {
  auto* const row_sums = static_cast<std::byte*>(workspace);
  std::vector<Tensor> tensors = {{kQ, inputs.q},      {kK, inputs.k},
                                 {kV, inputs.v},      {kY, y},
                                 {kLse, lse},         {kDy, dy},
                                 {kDq, gradients.dq}, {kDk, gradients.dk},
                                 {kDv, gradients.dv}, {kRowSums, row_sums},
                                 {kOne, &kOneValue}};
  if (mask_.batch > 0) tensors.push_back({kMask, inputs.mask.data});
  if (const int64_t bytes = RowBytes(shape_, 1); own_bytes_ > bytes) {
    tensors.push_back({kDqSums, row_sums + bytes});
  }
  return Run(tensors, row_sums);
}

// The library reads the scalars from host memory during the call.
Failure FusedAttention::Run(const std::vector<Tensor>& tensors, std::byte* workspace) const {
  std::vector<int64_t> ids;
  std::vector<const void*> addresses;
  const auto add = [&](int64_t id, const void* address) {
    ids.push_back(id);
    addresses.push_back(address);
  };
  for (const Tensor& tensor : tensors) add(tensor.id, tensor.data);
  add(kScale, &shape_.scale);
  if (shape_.causal) add(kUnseen, &kUnseenValue);

  cudnnBackendDescriptor_t made = nullptr;
  cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &made);
  const Descriptor pack(made);
  const auto set = [&](cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type,
                       size_t count, const void* values) {
    if (status == CUDNN_STATUS_SUCCESS) {
      status = cudnnBackendSetAttribute(made, attribute, type, static_cast<int64_t>(count), values);
    }
  };
  const void* const library_workspace = workspace + own_bytes_;
  set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids.size(), ids.data());
  set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, addresses.size(),
      addresses.data());
  set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &library_workspace);
  if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendFinalize(made);
  if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendExecute(handle_, plan_.get(), made);
  return FailureOf(status);
}

}  // namespace muster::kernels::cuda
