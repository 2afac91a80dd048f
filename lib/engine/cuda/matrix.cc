// Matrix products.
#include <algorithm>
#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/fused_gelu.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/reduction.h"
#include "lib/engine/cuda/binding.h"
#include "lib/graph/attributes.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using MatMul = std::shared_ptr<cuda::MatMul>;
using Shape = std::vector<int64_t>;

// Plans a product of `operands_of(memory)`, followed by `after(memory)` if given.
template <typename OperandsOf, typename After>
PlannedNode PlanProduct(CudaContext& context, const MatMul& product, OperandsOf operands_of,
                        After after) {
  return {.workspace_bytes = product->workspace_bytes() + kWorkspaceAlignment,
          .prepare = [=, &context](const NodeMemory& m) -> NodeRun {
            const cuda::MatMulOperands operands = operands_of(m);
            std::byte* workspace = Align(m.workspace);
            context.ChooseOnce(product, operands, workspace);
            return [=, stream = context.stream](const RunNumbers&) -> absl::Status {
              RETURN_IF_ERROR(StatusOf(product->Run(operands, workspace, stream)));
              return StatusOf(after(m));
            };
          }};
}

template <typename OperandsOf>
PlannedNode PlanProduct(CudaContext& context, const MatMul& product, OperandsOf operands_of) {
  return PlanProduct(context, product, operands_of, [](const NodeMemory&) { return cudaSuccess; });
}

// --- Linear -------------------------------------------------------------------------------------

// Returns the shape of y[R, O] = x[R, I] w[O, I]ᵀ.
cuda::MatMulShape LinearShape(const CudaNode& node) {
  const Shape& w = node.shape(1);
  return {.rows = node.elements(0) / w[1],
          .columns = PaddedSize(node, w[0]),
          .inner = w[1],
          .transpose_b = true,
          .operands = node.type(0),
          .product = node.type(0),
          .has_bias = node.inputs.size() > 2};
}

cuda::MatMulOperands LinearOperands(const NodeMemory& m) {
  return {.c = m.outputs[0],
          .a = m.inputs[0],
          .b = m.inputs[1],
          .bias = OptionalInput(m, 2),
          .preactivation = OptionalOutput(m, 1)};
}

// Prepares a Linear without an activation.
absl::StatusOr<MatMul> PrepareAffine(const CudaNode& node) {
  cuda::MatMulShape shape = LinearShape(node);
  if (shape.has_bias) shape.epilogue = cuda::Epilogue::kBias;
  return node.context.Prepare(shape);
}

absl::StatusOr<PlannedNode> PlanLinear(const CudaNode& node) {
  ASSIGN_OR_RETURN(const MatMul product, PrepareAffine(node));
  return Padded(node, PlanProduct(node.context, product, LinearOperands));
}

absl::StatusOr<PlannedNode> PlanLinearRelu(const CudaNode& node) {
  cuda::MatMulShape shape = LinearShape(node);
  shape.epilogue = cuda::Epilogue::kRelu;
  if (const auto fused = node.context.Prepare(shape); fused.ok()) {
    return PlanProduct(node.context, *fused, LinearOperands);
  }
  ASSIGN_OR_RETURN(const MatMul product, PrepareAffine(node));
  return PlanProduct(node.context, product, LinearOperands,
                     [n = node.outputs[0].elements(), type = node.type(0),
                      stream = node.context.stream](const NodeMemory& m) {
                       return cuda::Apply(cuda::Function::kRelu, m.outputs[0], m.outputs[0], n,
                                          type, stream);
                     });
}

absl::StatusOr<PlannedNode> PlanLinearGelu(const CudaNode& node) {
  const bool is_exact = IntegerAttribute(*node.node, "exact") != 0;
  cuda::MatMulShape shape = LinearShape(node);
  shape.epilogue = cuda::Epilogue::kGelu;
  if (cuda::LibraryHasGelu(shape.operands, is_exact, shape.columns)) {
    if (const auto fused = node.context.Prepare(shape); fused.ok()) {
      return PlanProduct(node.context, *fused, LinearOperands);
    }
  }
  ASSIGN_OR_RETURN(const MatMul product, PrepareAffine(node));
  return PlanProduct(
      node.context, product,
      [](const NodeMemory& m) {
        cuda::MatMulOperands operands = LinearOperands(m);
        operands.c = m.outputs[1];
        return operands;
      },
      [f = is_exact ? cuda::Function::kGeluExact : cuda::Function::kGelu,
       n = node.outputs[0].elements(), type = node.type(0),
       stream = node.context.stream](const NodeMemory& m) {
        return cuda::Apply(f, m.outputs[0], m.outputs[1], n, type, stream);
      });
}

cuda::MatMulOperands TwoOperands(const NodeMemory& m) {
  return {.c = m.outputs[0], .a = m.inputs[0], .b = m.inputs[1]};
}

// Returns the shape of dx[R, I] = dy[R, O] w[O, I].
cuda::MatMulShape GradInputShape(const CudaNode& node) {
  const Shape& w = node.shape(1);
  return {.rows = node.elements(0) / w[0],
          .columns = w[1],
          .inner = PaddedSize(node, w[0]),
          .operands = node.type(0),
          .product = node.type(0)};
}

absl::StatusOr<PlannedNode> PlanLinearGradInput(const CudaNode& node) {
  ASSIGN_OR_RETURN(const MatMul product, node.context.Prepare(GradInputShape(node)));
  return Padded(node, PlanProduct(node.context, product, TwoOperands));
}

// The library's epilogue approximates tanh, which would be visible in f32. So f32 uses our own
// kernel.
absl::StatusOr<PlannedNode> PlanLinearGradInputGelu(const CudaNode& node) {
  const bool is_exact = IntegerAttribute(*node.node, "exact") != 0;
  cuda::MatMulShape shape = GradInputShape(node);
  shape.epilogue = cuda::Epilogue::kGeluGrad;
  if (!is_exact && node.type(0) != cuda::Type::kF32 && shape.columns % 8 == 0) {
    if (const auto fused = node.context.Prepare(shape); fused.ok()) {
      return PlanProduct(node.context, *fused, [](const NodeMemory& m) {
        cuda::MatMulOperands operands = TwoOperands(m);
        operands.preactivation = m.inputs[2];
        return operands;
      });
    }
  }
  ASSIGN_OR_RETURN(const MatMul product, node.context.Prepare(GradInputShape(node)));
  return PlanProduct(node.context, product, TwoOperands,
                     [f = is_exact ? cuda::Function::kGeluExact : cuda::Function::kGelu,
                      n = node.outputs[0].elements(), type = node.type(0),
                      stream = node.context.stream](const NodeMemory& m) {
                       return cuda::ApplyGrad(f, m.outputs[0], m.outputs[0], m.inputs[2], n, type,
                                              stream);
                     });
}

// Returns the shape of dw[O, I] = dy[R, O]ᵀ x[R, I].
cuda::MatMulShape GradWeightShape(const CudaNode& node) {
  const Shape& w = node.outputs[0].shape;
  return {.rows = PaddedSize(node, w[0]),
          .columns = w[1],
          .inner = node.elements(0) / w[0],
          .transpose_a = true,
          .operands = node.type(0),
          .product = node.type(0)};
}

absl::StatusOr<PlannedNode> PlanLinearGradWeight(const CudaNode& node) {
  ASSIGN_OR_RETURN(const MatMul product, node.context.Prepare(GradWeightShape(node)));
  return Padded(node, PlanProduct(node.context, product, TwoOperands));
}

// Plans the sums of dy's columns, written to `output`.
PlannedNode PlanColumnSums(const CudaNode& node, int output) {
  const cuda::BatchNormShape shape = {.batch = node.rows(0),
                                      .channels = PaddedSize(node, node.columns(0)),
                                      .pixels = 1,
                                      .order = cuda::ChannelOrder::kLast,
                                      .type = node.type(0)};
  return {.workspace_bytes = cuda::BatchNormWorkspaceBytes(shape),
          .prepare = Enqueue([shape, output, stream = node.context.stream](const NodeMemory& m) {
            return cuda::SumChannelBias(m.outputs[output], m.inputs[0], shape, m.workspace, stream);
          })};
}

absl::StatusOr<PlannedNode> PlanLinearGradBias(const CudaNode& node) {
  return Padded(node, PlanColumnSums(node, 0));
}

// Runs both plans one after the other, in the same scratch memory.
PlannedNode Both(const PlannedNode& first, const PlannedNode& second) {
  return {
      .workspace_bytes = std::max(first.workspace_bytes, second.workspace_bytes),
      .prepare = [first = first.prepare, second = second.prepare](const NodeMemory& m) -> NodeRun {
        return [one = first(m), other = second(m)](const RunNumbers& numbers) -> absl::Status {
          RETURN_IF_ERROR(one(numbers));
          return other(numbers);
        };
      }};
}

// Uses our own kernel for the bias gradient, the sums of dy's columns. The library's epilogue for
// these sums is also a separate kernel after the product, and a slower one: on an H100 it reads dy
// at 1.9 TB/s.
absl::StatusOr<PlannedNode> PlanLinearGradWeightBias(const CudaNode& node) {
  ASSIGN_OR_RETURN(const MatMul product, node.context.Prepare(GradWeightShape(node)));
  return Padded(node,
                Both(PlanProduct(node.context, product, TwoOperands), PlanColumnSums(node, 1)));
}

// --- Batches of products -----------------------------------------------------------------------

// One dimension of a batch. One step in it moves the operands and the product by a, b and c
// elements.
struct BatchDimension {
  int64_t size, a, b, c;
};

// Returns the dimensions from the innermost outwards. Dimensions that all three tensors traverse
// without a gap are merged.
std::vector<BatchDimension> BatchOf(const Shape& full, Shape a, Shape b, int64_t a_matrix,
                                    int64_t b_matrix, int64_t c_matrix) {
  a.insert(a.begin(), full.size() - a.size(), 1);
  b.insert(b.begin(), full.size() - b.size(), 1);
  std::vector<BatchDimension> batch;
  for (size_t d = full.size(); d-- > 0;) {
    const BatchDimension own = {full[d], a[d] == 1 ? 0 : a_matrix, b[d] == 1 ? 0 : b_matrix,
                                c_matrix};
    a_matrix *= a[d];
    b_matrix *= b[d];
    c_matrix *= full[d];
    if (own.size == 1) continue;
    if (!batch.empty()) {
      BatchDimension& last = batch.back();
      if (own.a == last.a * last.size && own.b == last.b * last.size &&
          own.c == last.c * last.size) {
        last.size *= own.size;
        continue;
      }
    }
    batch.push_back(own);
  }
  return batch;
}

Shape BroadcastBatch(const Shape& a, const Shape& b) {
  Shape full(std::max(a.size(), b.size()));
  for (size_t d = 1; d <= full.size(); ++d) {
    const int64_t of_a = d <= a.size() ? a[a.size() - d] : 1;
    const int64_t of_b = d <= b.size() ? b[b.size() - d] : 1;
    full[full.size() - d] = std::max(of_a, of_b);
  }
  return full;
}

Shape BatchShape(const Shape& shape) { return {shape.begin(), shape.end() - 2}; }

int64_t Product(const Shape& shape) {
  int64_t product = 1;
  for (int64_t size : shape) product *= size;
  return product;
}

// Plans a product of batches of the inputs `a` and `b`; `shape` describes their matrices. Sums over
// the batch dimensions that are 1 in the output.
absl::StatusOr<PlannedNode> PlanBatches(const CudaNode& node, cuda::MatMulShape shape, int a,
                                        int b) {
  const Shape a_batch = BatchShape(node.shape(a)), b_batch = BatchShape(node.shape(b));
  const Shape full = BroadcastBatch(a_batch, b_batch);
  Shape own = BatchShape(node.outputs[0].shape);
  own.insert(own.begin(), full.size() - own.size(), 1);
  const int64_t c_matrix = shape.rows * shape.columns;
  std::vector<BatchDimension> batch = BatchOf(full, a_batch, b_batch, shape.rows * shape.inner,
                                              shape.inner * shape.columns, c_matrix);
  shape.operands = node.type(a);
  shape.product = node.output_type(0);

  bool is_summed = own != full;
  if (batch.size() == 1) {
    const BatchDimension& only = batch[0];
    if (is_summed && Product(own) == 1 && shape.transpose_a && !shape.transpose_b && only.a != 0 &&
        only.b != 0) {
      // The rows of both inputs are contiguous, so the sum over the batch is a product over more
      // rows.
      shape.inner *= only.size;
      batch.clear();
      is_summed = false;
    } else if (!is_summed && !shape.transpose_a && only.a != 0 && only.b == 0) {
      // b repeats and the rows of a are contiguous, so the batch is one product of more rows.
      shape.rows *= only.size;
      batch.clear();
    }
  }
  if (is_summed) shape.product = cuda::Type::kF32;  // rounded once, after the sum
  // The library takes the innermost dimension of the batch. The other dimensions are loops with one
  // launch per step. The operands of a step may be less aligned than the tensors.
  if (!batch.empty()) {
    shape.batch = batch[0].size;
    shape.a_stride = batch[0].a;
    shape.b_stride = batch[0].b;
    shape.c_stride = batch[0].c;
    batch.erase(batch.begin());
  }
  for (const BatchDimension& d : batch) {
    const int64_t bytes = cuda::Bytes(shape.operands);
    shape.alignment = std::gcd(std::gcd(shape.alignment, d.a * bytes),
                               std::gcd(d.b * bytes, d.c * cuda::Bytes(shape.product)));
  }
  ASSIGN_OR_RETURN(const MatMul product, node.context.Prepare(shape));

  cuda::ReductionShape reduction;
  for (size_t d = 0; d < full.size(); ++d) {
    reduction.sizes.push_back(full[d]);
    reduction.reduced.push_back(own[d] == 1);
  }
  reduction.sizes.push_back(c_matrix);
  reduction.reduced.push_back(false);
  const int64_t library = Aligned(product->workspace_bytes());
  const int64_t sums = is_summed ? Aligned(cuda::ReductionWorkspaceBytes(reduction)) : 0;
  const int64_t products = is_summed ? Product(full) * c_matrix * int64_t{sizeof(float)} : 0;
  return PlannedNode{
      .workspace_bytes = library + sums + products + kWorkspaceAlignment,
      .prepare = [=, &context = node.context,
                  type = node.output_type(0)](const NodeMemory& m) -> NodeRun {
        std::byte* workspace = Align(m.workspace);
        std::byte* c = is_summed ? workspace + library + sums : m.outputs[0];
        const cuda::MatMulOperands first = {.c = c, .a = m.inputs[a], .b = m.inputs[b]};
        context.ChooseOnce(product, first, workspace);
        return [=, stream = context.stream](const RunNumbers&) -> absl::Status {
          const int64_t of_operand = cuda::Bytes(shape.operands);
          const int64_t of_product = cuda::Bytes(shape.product);
          int64_t launches = 1;
          for (const BatchDimension& d : batch) launches *= d.size;
          for (int64_t i = 0; i < launches; ++i) {
            int64_t rest = i, at_a = 0, at_b = 0, at_c = 0;
            for (const BatchDimension& d : batch) {
              at_a += rest % d.size * d.a;
              at_b += rest % d.size * d.b;
              at_c += rest % d.size * d.c;
              rest /= d.size;
            }
            RETURN_IF_ERROR(StatusOf(product->Run({.c = c + at_c * of_product,
                                                   .a = m.inputs[a] + at_a * of_operand,
                                                   .b = m.inputs[b] + at_b * of_operand},
                                                  workspace, stream)));
          }
          if (!is_summed) return absl::OkStatus();
          return StatusOf(cuda::Sum(m.outputs[0], type, c, cuda::Type::kF32, 1, reduction,
                                    workspace + library, stream));
        };
      }};
}

// M, N and K of y = a b, derived from the types of a and b.
struct Matrices {
  int64_t rows, columns, inner;
  bool transpose_a, transpose_b;
};

Matrices MatricesOf(const CudaNode& node, int a, int b) {
  const bool transpose_a = IntegerAttribute(*node.node, "transpose_a") != 0;
  const bool transpose_b = IntegerAttribute(*node.node, "transpose_b") != 0;
  const Shape& of_a = node.shape(a);
  const Shape& of_b = node.shape(b);
  return {.rows = of_a[of_a.size() - (transpose_a ? 1 : 2)],
          .columns = of_b[of_b.size() - (transpose_b ? 2 : 1)],
          .inner = of_a[of_a.size() - (transpose_a ? 2 : 1)],
          .transpose_a = transpose_a,
          .transpose_b = transpose_b};
}

absl::StatusOr<PlannedNode> PlanMatMul(const CudaNode& node) {
  const Matrices s = MatricesOf(node, 0, 1);
  return PlanBatches(node,
                     {.rows = s.rows,
                      .columns = s.columns,
                      .inner = s.inner,
                      .transpose_a = s.transpose_a,
                      .transpose_b = s.transpose_b},
                     0, 1);
}

// Inputs: dy, a (shape), b. da[M, K] = dy bᵀ; if a is given transposed, da[K, M] = b dyᵀ.
absl::StatusOr<PlannedNode> PlanMatMulGradA(const CudaNode& node) {
  const Matrices s = MatricesOf(node, 1, 2);
  absl::StatusOr<PlannedNode> plan = s.transpose_a ? PlanBatches(node,
                                                                 {.rows = s.inner,
                                                                  .columns = s.rows,
                                                                  .inner = s.columns,
                                                                  .transpose_a = s.transpose_b,
                                                                  .transpose_b = true},
                                                                 2, 0)
                                                   : PlanBatches(node,
                                                                 {.rows = s.rows,
                                                                  .columns = s.inner,
                                                                  .inner = s.columns,
                                                                  .transpose_b = !s.transpose_b},
                                                                 0, 2);
  if (plan.ok()) plan->shape_only = {1};
  return plan;
}

// Inputs: dy, a, b (shape). db[K, N] = aᵀ dy; if b is given transposed, db[N, K] = dyᵀ a.
absl::StatusOr<PlannedNode> PlanMatMulGradB(const CudaNode& node) {
  const Matrices s = MatricesOf(node, 1, 2);
  absl::StatusOr<PlannedNode> plan = s.transpose_b ? PlanBatches(node,
                                                                 {.rows = s.columns,
                                                                  .columns = s.inner,
                                                                  .inner = s.rows,
                                                                  .transpose_a = true,
                                                                  .transpose_b = s.transpose_a},
                                                                 0, 1)
                                                   : PlanBatches(node,
                                                                 {.rows = s.inner,
                                                                  .columns = s.columns,
                                                                  .inner = s.rows,
                                                                  .transpose_a = !s.transpose_a},
                                                                 1, 0);
  if (plan.ok()) plan->shape_only = {2};
  return plan;
}

}  // namespace

void AddMatrixKernels(CudaKernelTable& table) {
  table["Linear"] = PlanLinear;
  table["LinearRelu"] = PlanLinearRelu;
  table["LinearGelu"] = PlanLinearGelu;
  table["LinearGradInput"] = PlanLinearGradInput;
  table["LinearGradWeight"] = PlanLinearGradWeight;
  table["LinearGradBias"] = PlanLinearGradBias;
  table["LinearGradWeightBias"] = PlanLinearGradWeightBias;
  table["LinearGradInputGelu"] = PlanLinearGradInputGelu;
  table["MatMul"] = PlanMatMul;
  table["MatMulGradA"] = PlanMatMulGradA;
  table["MatMulGradB"] = PlanMatMulGradB;
}

}  // namespace muster
