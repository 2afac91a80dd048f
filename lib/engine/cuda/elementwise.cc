#include "kernels/cuda/elementwise.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/dropout.h"
#include "kernels/cuda/reduction.h"
#include "lib/engine/cuda/binding.h"
#include "lib/graph/attributes.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using cuda::Combination;
using cuda::Function;
using Shape = std::vector<int64_t>;

float Constant(const CudaNode& node, absl::string_view attribute) {
  return static_cast<float>(NumberAttribute(*node.node, attribute));
}

// Returns a bound of a Clip; a missing bound is infinite.
float Bound(const CudaNode& node, absl::string_view attribute, float infinite) {
  return HasAttribute(*node.node, attribute) ? Constant(node, attribute) : infinite;
}

// Returns the function with the node's attributes.
cuda::Curve CurveOf(const CudaNode& node, Function f) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  switch (f) {
    case Function::kGelu:
      return IntegerAttribute(*node.node, "exact") != 0 ? Function::kGeluExact : f;
    case Function::kElu:
      return {f, Constant(node, "alpha")};
    case Function::kLeakyRelu:
      return {f, Constant(node, "slope")};
    case Function::kHardSigmoid:
      return {f, Constant(node, "alpha"), Constant(node, "beta")};
    case Function::kClip:
      return {f, Bound(node, "min", -kInfinity), Bound(node, "max", kInfinity)};
    default:
      return f;
  }
}

template <Function f>
absl::StatusOr<PlannedNode> PlanFunction(const CudaNode& node) {
  return Pointwise(
      node, {0},
      {.prepare = Enqueue([own = CurveOf(node, f), n = node.elements(0), type = node.type(0),
                           stream = node.context.stream](const NodeMemory& m) {
         return cuda::Apply(own, m.outputs[0], m.inputs[0], n, type, stream);
       })});
}

template <Function f>
absl::StatusOr<PlannedNode> PlanFunctionGrad(const CudaNode& node) {
  const std::vector<int> inputs =
      f == Function::kNeg ? std::vector<int>{0} : std::vector<int>{0, 1};
  return Pointwise(
      node, inputs,
      {.prepare = Enqueue([own = CurveOf(node, f), n = node.elements(0), type = node.type(0),
                           stream = node.context.stream](const NodeMemory& m) {
         return cuda::ApplyGrad(own, m.outputs[0], m.inputs[0], OptionalInput(m, 1), n, type,
                                stream);
       })});
}

absl::StatusOr<PlannedNode> PlanIsNan(const CudaNode& node) {
  return Pointwise(node, {0},
                   {.prepare = Enqueue([n = node.elements(0), type = node.type(0),
                                        stream = node.context.stream](const NodeMemory& m) {
                      return cuda::IsNan(IntegerOutput(m), m.inputs[0], n, type, stream);
                    })});
}

// Returns the dimensions of `wide` along which a tensor of shape `narrow` repeats. Both shapes are
// aligned at the last dimension.
cuda::ReductionShape BroadcastOf(const Shape& wide, const Shape& narrow) {
  cuda::ReductionShape reduction{wide, std::vector<bool>(wide.size())};
  const size_t missing = wide.size() - narrow.size();
  for (size_t d = 0; d < wide.size(); ++d) {
    reduction.reduced[d] = d < missing || (narrow[d - missing] == 1 && wide[d] > 1);
  }
  return reduction;
}

template <Combination f>
absl::StatusOr<PlannedNode> PlanCombination(const CudaNode& node) {
  std::vector<int> inputs, alike;
  std::vector<Shape> shapes;
  for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i) {
    inputs.push_back(i);
    if (node.type(i) == node.output_type(0)) alike.push_back(i);
    shapes.push_back(node.shape(i));
  }
  const Layout layout = PointwiseLayout(node, inputs);
  for (Shape& shape : shapes) shape = ShapeInMemory(shape, layout);
  PlannedNode plan = Pointwise(
      node, inputs,
      {.prepare = Enqueue([shapes, y_type = node.output_type(0), type = node.type(inputs.back()),
                           stream = node.context.stream](const NodeMemory& m) {
         std::vector<cuda::BroadcastOperand> operands;
         for (size_t i = 0; i < shapes.size(); ++i) operands.push_back({m.inputs[i], shapes[i]});
         return cuda::Combine(f, m.outputs[0], y_type, operands, type, stream);
       })});
  // An operand may be overwritten only if it has the result's shape: then each element is read
  // where the result is written.
  plan.overwritable.clear();
  for (int i : alike) {
    if (node.shape(i) == node.outputs[0].shape) plan.overwritable.push_back(i);
  }
  return plan;
}

// Plans f of `operands`, in that order, summed to the output's shape. The sum goes through f32 if
// something was broadcast.
PlannedNode PlanSummed(const CudaNode& node, Combination f, std::vector<int> operands,
                       std::vector<int> shape_only) {
  const Shape& full = node.shape(
      f == Combination::kWhereGradA || f == Combination::kWhereGradB ? operands[1] : operands[0]);
  const Shape& own = node.outputs[0].shape;
  std::vector<Shape> shapes;
  for (int i : operands) shapes.push_back(node.shape(i));
  const auto combine = [=, type = node.output_type(0), stream = node.context.stream](
                           const NodeMemory& m, void* y, cuda::Type y_type) {
    std::vector<cuda::BroadcastOperand> of;
    for (size_t k = 0; k < operands.size(); ++k) of.push_back({m.inputs[operands[k]], shapes[k]});
    return cuda::Combine(f, y, y_type, of, type, stream);
  };
  if (own == full) {
    return {.shape_only = std::move(shape_only),
            .prepare = Enqueue([combine, type = node.output_type(0)](const NodeMemory& m) {
              return combine(m, m.outputs[0], type);
            })};
  }
  const cuda::ReductionShape reduction = BroadcastOf(full, own);
  const int64_t sums = Aligned(cuda::ReductionWorkspaceBytes(reduction));
  const int64_t products = reduction.outputs() * reduction.reductions() * int64_t{sizeof(float)};
  return {.shape_only = std::move(shape_only),
          .workspace_bytes = sums + products,
          .prepare = Enqueue([combine, reduction, sums, type = node.output_type(0),
                              stream = node.context.stream](const NodeMemory& m) {
            std::byte* full_product = m.workspace + sums;
            const cudaError_t error = combine(m, full_product, cuda::Type::kF32);
            if (error != cudaSuccess) return error;
            return cuda::Sum(m.outputs[0], type, full_product, cuda::Type::kF32, 1, reduction,
                             m.workspace, stream);
          })};
}

// Plans factor * dy, summed to the output's shape.
absl::StatusOr<PlannedNode> PlanSumTo(const CudaNode& node, float factor) {
  if (node.shape(0) == node.outputs[0].shape) {
    if (factor == 1) return PlanAlias(node, {1});
    PlannedNode plan =
        Pointwise(node, {0},
                  {.prepare = Enqueue([n = node.elements(0), type = node.type(0),
                                       stream = node.context.stream](const NodeMemory& m) {
                     return cuda::Apply(Function::kNeg, m.outputs[0], m.inputs[0], n, type, stream);
                   })});
    plan.shape_only = {1};
    return plan;
  }
  const cuda::ReductionShape reduction = BroadcastOf(node.shape(0), node.outputs[0].shape);
  return PlannedNode{.shape_only = {1},
                     .workspace_bytes = cuda::ReductionWorkspaceBytes(reduction),
                     .prepare = Enqueue([=, type = node.type(0),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::Sum(m.outputs[0], type, m.inputs[0], type, factor, reduction,
                                        m.workspace, stream);
                     })};
}

absl::StatusOr<PlannedNode> PlanAddGrad(const CudaNode& node) { return PlanSumTo(node, 1); }
absl::StatusOr<PlannedNode> PlanSubGradB(const CudaNode& node) { return PlanSumTo(node, -1); }

absl::StatusOr<PlannedNode> PlanMulGrad(const CudaNode& node) {
  return PlanSummed(node, Combination::kMul, {0, 2}, {1});
}
absl::StatusOr<PlannedNode> PlanDivGradA(const CudaNode& node) {
  return PlanSummed(node, Combination::kDiv, {0, 2}, {1});
}
template <Combination f>
absl::StatusOr<PlannedNode> PlanGradOfThree(const CudaNode& node) {
  return PlanSummed(node, f, {0, 1, 2}, {});
}
template <Combination f>
absl::StatusOr<PlannedNode> PlanWhereGrad(const CudaNode& node) {
  return PlanSummed(node, f, {1, 0}, {2});
}

absl::StatusOr<PlannedNode> PlanConvert(const CudaNode& node) {
  PlannedNode plan = Pointwise(
      node, {0},
      {.prepare = Enqueue([to = node.output_type(0), from = node.type(0), n = node.elements(0),
                           stream = node.context.stream](const NodeMemory& m) {
         return cuda::Convert(m.outputs[0], to, m.inputs[0], from, n, stream);
       })});
  if (node.inputs.size() > 1) plan.shape_only = {1};  // CastGrad
  return plan;
}

// Plans Dropout of a rank's part of the last dimension.
PlannedNode PlanDropoutOfPart(const CudaNode& node, const cuda::DropoutArguments& arguments) {
  const auto [first, whole] = PartAttributes(*node.node, node.columns(0));
  const cuda::DropoutPart part = {.columns = node.columns(0), .first = first, .whole = whole};
  return {.overwritable = {0},
          .prepare =
              Enqueue([=, rows = node.rows(0), type = node.type(0), numbers = node.context.numbers,
                       stream = node.context.stream](const NodeMemory& m) {
                return cuda::DropoutOfPart(m.outputs[0], m.inputs[0], rows, part, type, arguments,
                                           numbers, stream);
              })};
}

absl::StatusOr<PlannedNode> PlanDropout(const CudaNode& node) {
  const auto rate = static_cast<float>(NumberAttribute(*node.node, "rate"));
  const cuda::DropoutArguments arguments = {
      .rate = rate,
      .threshold = static_cast<uint32_t>(std::ceil(rate * 0x1p24f)),
      .salt = IntegerAttribute(*node.node, "salt")};
  if (HasAttribute(*node.node, "whole")) return PlanDropoutOfPart(node, arguments);
  return PlannedNode{
      .overwritable = {0},
      .prepare =
          Enqueue([=, n = node.elements(0), type = node.type(0), numbers = node.context.numbers,
                   stream = node.context.stream](const NodeMemory& m) {
            return cuda::Dropout(m.outputs[0], m.inputs[0], n, type, arguments, numbers, stream);
          })};
}

absl::StatusOr<PlannedNode> PlanAccumulate(const CudaNode& node) {
  std::vector<int> inputs;
  for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i) inputs.push_back(i);
  PlannedNode plan =
      Pointwise(node, inputs,
                {.prepare = Enqueue([n = node.elements(0), type = node.type(0),
                                     stream = node.context.stream](const NodeMemory& m) {
                   // The first term of later rounds is the sum so far.
                   std::vector<const void*> terms(m.inputs.begin(), m.inputs.end());
                   for (size_t done = 0; done < terms.size();) {
                     const size_t start = done == 0 ? 0 : done - 1;
                     const size_t count = std::min<size_t>(cuda::kTermsMax, terms.size() - start);
                     if (done > 0) terms[start] = m.outputs[0];
                     const cudaError_t error = cuda::Accumulate(
                         m.outputs[0], &terms[start], static_cast<int>(count), n, type, stream);
                     if (error != cudaSuccess) return error;
                     done = start + count;
                   }
                   return cudaSuccess;
                 })});
  // A term of a later round must not share memory with the output of the first.
  if (inputs.size() > cuda::kTermsMax) plan.overwritable = {0};
  return plan;
}

}  // namespace

void AddElementwiseKernels(CudaKernelTable& table) {
  table["Relu"] = PlanFunction<Function::kRelu>;
  table["Silu"] = PlanFunction<Function::kSilu>;
  table["Tanh"] = PlanFunction<Function::kTanh>;
  table["Sigmoid"] = PlanFunction<Function::kSigmoid>;
  table["Erf"] = PlanFunction<Function::kErf>;
  table["Exp"] = PlanFunction<Function::kExp>;
  table["Log"] = PlanFunction<Function::kLog>;
  table["Sqrt"] = PlanFunction<Function::kSqrt>;
  table["Neg"] = PlanFunction<Function::kNeg>;
  table["Gelu"] = PlanFunction<Function::kGelu>;
  table["ReluGrad"] = PlanFunctionGrad<Function::kRelu>;
  table["SiluGrad"] = PlanFunctionGrad<Function::kSilu>;
  table["TanhGrad"] = PlanFunctionGrad<Function::kTanh>;
  table["SigmoidGrad"] = PlanFunctionGrad<Function::kSigmoid>;
  table["ErfGrad"] = PlanFunctionGrad<Function::kErf>;
  table["ExpGrad"] = PlanFunctionGrad<Function::kExp>;
  table["LogGrad"] = PlanFunctionGrad<Function::kLog>;
  table["SqrtGrad"] = PlanFunctionGrad<Function::kSqrt>;
  table["NegGrad"] = PlanFunctionGrad<Function::kNeg>;
  table["GeluGrad"] = PlanFunctionGrad<Function::kGelu>;
  table["Abs"] = PlanFunction<Function::kAbs>;
  table["Sin"] = PlanFunction<Function::kSin>;
  table["Cos"] = PlanFunction<Function::kCos>;
  table["Softplus"] = PlanFunction<Function::kSoftplus>;
  table["Elu"] = PlanFunction<Function::kElu>;
  table["LeakyRelu"] = PlanFunction<Function::kLeakyRelu>;
  table["HardSigmoid"] = PlanFunction<Function::kHardSigmoid>;
  table["Clip"] = PlanFunction<Function::kClip>;
  table["AbsGrad"] = PlanFunctionGrad<Function::kAbs>;
  table["SinGrad"] = PlanFunctionGrad<Function::kSin>;
  table["CosGrad"] = PlanFunctionGrad<Function::kCos>;
  table["SoftplusGrad"] = PlanFunctionGrad<Function::kSoftplus>;
  table["EluGrad"] = PlanFunctionGrad<Function::kElu>;
  table["LeakyReluGrad"] = PlanFunctionGrad<Function::kLeakyRelu>;
  table["HardSigmoidGrad"] = PlanFunctionGrad<Function::kHardSigmoid>;
  table["ClipGrad"] = PlanFunctionGrad<Function::kClip>;
  table["Floor"] = PlanFunction<Function::kFloor>;
  table["Ceil"] = PlanFunction<Function::kCeil>;
  table["Round"] = PlanFunction<Function::kRound>;
  table["Sign"] = PlanFunction<Function::kSign>;
  table["IsNan"] = PlanIsNan;
  table["Add"] = PlanCombination<Combination::kAdd>;
  table["Sub"] = PlanCombination<Combination::kSub>;
  table["Mul"] = PlanCombination<Combination::kMul>;
  table["Div"] = PlanCombination<Combination::kDiv>;
  table["Pow"] = PlanCombination<Combination::kPow>;
  table["Minimum"] = PlanCombination<Combination::kMinimum>;
  table["Maximum"] = PlanCombination<Combination::kMaximum>;
  table["Mod"] = PlanCombination<Combination::kMod>;
  table["Equal"] = PlanCombination<Combination::kEqual>;
  table["Less"] = PlanCombination<Combination::kLess>;
  table["LessOrEqual"] = PlanCombination<Combination::kLessOrEqual>;
  table["Where"] = PlanCombination<Combination::kWhere>;
  table["AddGrad"] = PlanAddGrad;
  table["SubGradB"] = PlanSubGradB;
  table["MulGrad"] = PlanMulGrad;
  table["DivGradA"] = PlanDivGradA;
  table["DivGradB"] = PlanGradOfThree<Combination::kDivGradB>;
  table["MinimumGrad"] = PlanGradOfThree<Combination::kMinimumGrad>;
  table["MaximumGrad"] = PlanGradOfThree<Combination::kMaximumGrad>;
  table["PowGradA"] = PlanGradOfThree<Combination::kPowGradA>;
  table["PowGradB"] = PlanGradOfThree<Combination::kPowGradB>;
  table["WhereGradA"] = PlanWhereGrad<Combination::kWhereGradA>;
  table["WhereGradB"] = PlanWhereGrad<Combination::kWhereGradB>;
  table["Cast"] = PlanConvert;
  table["CastGrad"] = PlanConvert;
  table["Dropout"] = PlanDropout;
  table["DropoutGrad"] = PlanDropout;
  table["Accumulate"] = PlanAccumulate;
  table["TotalLoss"] = PlanAccumulate;
}

}  // namespace muster
