// Functions of single elements. If all tensors have one shape, they work on any common layout. With
// broadcasting they work on the plain layout.
#include "kernels/elementwise.h"

#include <algorithm>
#include <limits>

#include "kernels/activation.h"
#include "kernels/conversion.h"
#include "kernels/dropout.h"
#include "lib/engine/cpu/binding.h"
#include "lib/engine/element_type.h"
#include "lib/graph/attributes.h"

namespace muster {
namespace {

// --- Functions of one tensor --------------------------------------------------------------------

using Function = void (*)(float* y, const float* x, int64_t n);
using Derivative = void (*)(float* dx, const float* dy, const float* value, int64_t n);

// Whether a function keeps the zeros in the gaps of a padded layout. The gaps must hold zeros.
enum class Gaps { kStayZero, kWouldChange };

Layout LayoutFor(const CpuNode& n, const std::vector<int>& inputs, Gaps gaps) {
  const Layout layout = CommonLayout(n, inputs);
  return gaps == Gaps::kWouldChange && n.layout_table[layout].is_padded() ? Layout::kPlain : layout;
}

// Plans f(y, x, elements).
template <typename F>
PlannedNode PlanEach(const CpuNode& n, Gaps gaps, F f) {
  const Layout layout = LayoutFor(n, {0}, gaps);
  return {.input_layouts = {layout},
          .output_layouts = {layout},
          .overwritable = {0},
          .prepare = Call([f, places = n.layout_table.Places(n.inputs[0], layout)](
                              const NodeMemory& m) { f(Output(m), Input(m, 0), places); })};
}

// Plans f(dx, dy, value, elements).
template <typename F>
PlannedNode PlanEachGrad(const CpuNode& n, Gaps gaps, F f) {
  const Layout layout = LayoutFor(n, {0, 1}, gaps);
  return {.input_layouts = {layout, layout},
          .output_layouts = {layout},
          .overwritable = {0, 1},
          .prepare =
              Call([f, places = n.layout_table.Places(n.inputs[0], layout)](const NodeMemory& m) {
                f(Output(m), Input(m, 0), Input(m, 1), places);
              })};
}

template <Function kFunction, Gaps kGaps = Gaps::kStayZero>
PlannedNode PlanFunction(const CpuNode& n) {
  return PlanEach(n, kGaps, kFunction);
}

template <Derivative kDerivative, Gaps kGaps = Gaps::kStayZero>
PlannedNode PlanDerivative(const CpuNode& n) {
  return PlanEachGrad(n, kGaps, kDerivative);
}

float Constant(const CpuNode& n, absl::string_view attribute) {
  return static_cast<float>(NumberAttribute(*n.node, attribute));
}

// Elu and LeakyRelu: functions with one constant.
using BentFunction = void (*)(float* y, const float* x, float slope, int64_t n);
using BentDerivative = void (*)(float* dx, const float* dy, const float* x, float slope, int64_t n);

template <BentFunction kFunction>
PlannedNode PlanBent(const CpuNode& n, absl::string_view attribute) {
  return PlanEach(n, Gaps::kStayZero,
                  [slope = Constant(n, attribute)](float* y, const float* x, int64_t size) {
                    kFunction(y, x, slope, size);
                  });
}

template <BentDerivative kDerivative>
PlannedNode PlanBentGrad(const CpuNode& n, absl::string_view attribute) {
  return PlanEachGrad(
      n, Gaps::kStayZero,
      [slope = Constant(n, attribute)](float* dx, const float* dy, const float* x, int64_t size) {
        kDerivative(dx, dy, x, slope, size);
      });
}

PlannedNode PlanElu(const CpuNode& n) { return PlanBent<kernels::Elu>(n, "alpha"); }
PlannedNode PlanEluGrad(const CpuNode& n) { return PlanBentGrad<kernels::EluGrad>(n, "alpha"); }
PlannedNode PlanLeakyRelu(const CpuNode& n) { return PlanBent<kernels::LeakyRelu>(n, "slope"); }
PlannedNode PlanLeakyReluGrad(const CpuNode& n) {
  return PlanBentGrad<kernels::LeakyReluGrad>(n, "slope");
}

PlannedNode PlanHardSigmoid(const CpuNode& n) {
  return PlanEach(n, Gaps::kWouldChange,
                  [alpha = Constant(n, "alpha"), beta = Constant(n, "beta")](
                      float* y, const float* x, int64_t size) {
                    kernels::HardSigmoid(y, x, alpha, beta, size);
                  });
}

PlannedNode PlanHardSigmoidGrad(const CpuNode& n) {
  return PlanEachGrad(n, Gaps::kStayZero,
                      [alpha = Constant(n, "alpha"), beta = Constant(n, "beta")](
                          float* dx, const float* dy, const float* x, int64_t size) {
                        kernels::HardSigmoidGrad(dx, dy, x, alpha, beta, size);
                      });
}

// Returns a bound of a Clip; a missing bound is infinite.
float Bound(const CpuNode& n, absl::string_view attribute, float infinite) {
  return HasAttribute(*n.node, attribute) ? Constant(n, attribute) : infinite;
}
float LowBound(const CpuNode& n) {
  return Bound(n, "min", -std::numeric_limits<float>::infinity());
}
float HighBound(const CpuNode& n) {
  return Bound(n, "max", std::numeric_limits<float>::infinity());
}

PlannedNode PlanClip(const CpuNode& n) {
  return PlanEach(n, Gaps::kWouldChange,
                  [low = LowBound(n), high = HighBound(n)](float* y, const float* x, int64_t size) {
                    kernels::Clip(y, x, low, high, size);
                  });
}

PlannedNode PlanClipGrad(const CpuNode& n) {
  return PlanEachGrad(n, Gaps::kStayZero,
                      [low = LowBound(n), high = HighBound(n)](float* dx, const float* dy,
                                                               const float* x, int64_t size) {
                        kernels::ClipGrad(dx, dy, x, low, high, size);
                      });
}

// Plans IsNan in the plain layout, because its output is i32 and only floats can be reordered.
PlannedNode PlanIsNan(const CpuNode& n) {
  return {.overwritable = {0}, .prepare = Call([size = n.elements(0)](const NodeMemory& m) {
                                 kernels::IsNan(IntegerOutput(m), Input(m, 0), size);
                               })};
}

bool IsExact(const CpuNode& n) { return IntegerAttribute(*n.node, "exact") != 0; }

PlannedNode PlanGelu(const CpuNode& n) {
  return IsExact(n) ? PlanFunction<kernels::GeluExact>(n) : PlanFunction<kernels::Gelu>(n);
}

PlannedNode PlanGeluGrad(const CpuNode& n) {
  return IsExact(n) ? PlanDerivative<kernels::GeluExactGrad>(n)
                    : PlanDerivative<kernels::GeluGrad>(n);
}

// Plans Cast, and CastGrad, which has a second, unread input.
PlannedNode PlanCast(const CpuNode& n) {
  const v1::DType from = n.inputs[0].dtype, to = n.outputs[0].dtype;
  if (from == to) return n.inputs.size() == 1 ? PlanAlias(n) : PlanAlias(n, {1});
  PlannedNode plan{.output_layouts = {n.layouts[0]}};
  plan.input_layouts.resize(n.inputs.size());
  plan.input_layouts[0] = n.layouts[0];
  if (n.inputs.size() > 1) plan.shape_only = {1};
  plan.prepare = Call([places = n.layout_table.Places(n.inputs[0], n.layouts[0]),
                       from = ElementTypeOf(from), to = ElementTypeOf(to)](const NodeMemory& m) {
    kernels::Convert(m.outputs[0], to, m.inputs[0], from, places);
  });
  return plan;
}

// Plans Dropout of a rank's part of the last dimension.
PlannedNode PlanDropoutOfPart(const CpuNode& n, float rate, int64_t salt) {
  const auto [first, whole] = PartAttributes(*n.node, n.columns(0));
  const kernels::DropoutPart part{.columns = n.columns(0), .first = first, .whole = whole};
  return {.overwritable = {0},
          .prepare = Call([rate, salt, part, rows = n.rows(0)](const NodeMemory& m,
                                                               const RunNumbers& numbers) {
            const int64_t position = numbers.first_position * (rows / numbers.samples) * part.whole;
            kernels::DropoutOfPart(Output(m), Input(m, 0), rows, part, position, rate,
                                   {.seed = numbers.seed, .step = numbers.step, .salt = salt});
          })};
}

// Plans Dropout and its gradient, which are the same function. The layout is plain, because the
// random number of an element depends on its position.
PlannedNode PlanDropout(const CpuNode& n) {
  const auto rate = static_cast<float>(NumberAttribute(*n.node, "rate"));
  const int64_t salt = IntegerAttribute(*n.node, "salt");
  if (HasAttribute(*n.node, "whole")) return PlanDropoutOfPart(n, rate, salt);
  return {.overwritable = {0},
          .prepare = Call(
              [rate, salt, size = n.elements(0)](const NodeMemory& m, const RunNumbers& numbers) {
                const int64_t first = numbers.first_position * (size / numbers.samples);
                kernels::Dropout(Output(m), Input(m, 0), size, first, rate,
                                 {.seed = numbers.seed, .step = numbers.step, .salt = salt});
              })};
}

// --- Functions of two or more tensors -----------------------------------------------------------

using BinaryFunction = void (*)(float* y, const kernels::Operand& a, const kernels::Operand& b);

bool HasShapeOf(const CpuNode& n, int input, const TensorType& type) {
  return n.inputs[input].shape == type.shape;
}

template <BinaryFunction kFunction, Gaps kGaps = Gaps::kStayZero>
PlannedNode PlanBinary(const CpuNode& n) {
  PlannedNode plan;
  for (int i : {0, 1}) {
    if (HasShapeOf(n, i, n.outputs[0])) plan.overwritable.push_back(i);
  }
  if (plan.overwritable.size() == 2) {
    const Layout layout = LayoutFor(n, {0, 1}, kGaps);
    plan.input_layouts = {layout, layout};
    plan.output_layouts = {layout};
    plan.prepare = Call([flat = std::vector<int64_t>{n.layout_table.Places(n.inputs[0], layout)}](
                            const NodeMemory& m) {
      kFunction(Output(m), OperandOf(m, 0, flat), OperandOf(m, 1, flat));
    });
    return plan;
  }
  plan.prepare = Call([a = n.inputs[0].shape, b = n.inputs[1].shape](const NodeMemory& m) {
    kFunction(Output(m), OperandOf(m, 0, a), OperandOf(m, 1, b));
  });
  return plan;
}

bool IsInteger(const CpuNode& n) { return n.inputs[0].dtype == v1::DTYPE_I32; }

// Plans a function of 4-byte elements in the plain layout, because only floats can be reordered.
template <typename F>
PlannedNode PlanPlain(const CpuNode& n, F f) {
  PlannedNode plan;
  for (int i : {0, 1}) {
    if (HasShapeOf(n, i, n.outputs[0])) plan.overwritable.push_back(i);
  }
  plan.prepare =
      Call([f, a = n.inputs[0].shape, b = n.inputs[1].shape](const NodeMemory& m) { f(m, a, b); });
  return plan;
}

using IntegerFunction = void (*)(int32_t* y, const kernels::IntegerOperand& a,
                                 const kernels::IntegerOperand& b);

template <IntegerFunction kFunction>
PlannedNode PlanIntegers(const CpuNode& n) {
  return PlanPlain(n, [](const NodeMemory& m, kernels::Dimensions a, kernels::Dimensions b) {
    kFunction(IntegerOutput(m), {Ids(m, 0), a}, {Ids(m, 1), b});
  });
}

template <BinaryFunction kFunction, IntegerFunction kOfIntegers, Gaps kGaps = Gaps::kStayZero>
PlannedNode PlanArithmetic(const CpuNode& n) {
  return IsInteger(n) ? PlanIntegers<kOfIntegers>(n) : PlanBinary<kFunction, kGaps>(n);
}

using Comparison = void (*)(int32_t* y, const kernels::Operand& a, const kernels::Operand& b);

template <Comparison kFunction, IntegerFunction kOfIntegers>
PlannedNode PlanComparison(const CpuNode& n) {
  if (IsInteger(n)) return PlanIntegers<kOfIntegers>(n);
  return PlanPlain(n, [](const NodeMemory& m, kernels::Dimensions a, kernels::Dimensions b) {
    kFunction(IntegerOutput(m), {Input(m, 0), a}, {Input(m, 1), b});
  });
}

using IntegerMap = void (*)(int32_t* y, const int32_t* x, int64_t n);

// Plans Neg and Abs.
template <Function kFunction, IntegerMap kOfIntegers>
PlannedNode PlanSigned(const CpuNode& n) {
  if (!IsInteger(n)) return PlanFunction<kFunction>(n);
  return {.overwritable = {0}, .prepare = Call([size = n.elements(0)](const NodeMemory& m) {
                                 kOfIntegers(IntegerOutput(m), Ids(m, 0), size);
                               })};
}

PlannedNode PlanWhere(const CpuNode& n) {
  PlannedNode plan;
  for (int i : {1, 2}) {
    if (HasShapeOf(n, i, n.outputs[0])) plan.overwritable.push_back(i);
  }
  plan.prepare = Call([condition = n.inputs[0].shape, a = n.inputs[1].shape,
                       b = n.inputs[2].shape](const NodeMemory& m) {
    kernels::Where(Output(m), Ids(m, 0), condition, OperandOf(m, 1, a), OperandOf(m, 2, b));
  });
  return plan;
}

// Plans the sum of dy over the broadcast dimensions. Also used for ExpandGrad.
PlannedNode PlanAddGrad(const CpuNode& n) {
  if (HasShapeOf(n, 0, n.outputs[0])) return PlanAlias(n, {1});
  return {.shape_only = {1},
          .prepare = Call([to = n.outputs[0].shape, dy = n.inputs[0].shape](const NodeMemory& m) {
            kernels::SumTo(Output(m), to, OperandOf(m, 0, dy));
          })};
}

PlannedNode PlanSubGradB(const CpuNode& n) {
  PlannedNode plan{.shape_only = {1}};
  if (HasShapeOf(n, 0, n.outputs[0])) plan.overwritable = {0};
  plan.prepare = Call([to = n.outputs[0].shape, dy = n.inputs[0].shape](const NodeMemory& m) {
    kernels::NegSumTo(Output(m), to, OperandOf(m, 0, dy));
  });
  return plan;
}

using ProductGrad = void (*)(float* da, kernels::Dimensions to, const kernels::Operand& dy,
                             const kernels::Operand& other);

// Plans the gradients of Mul, and of Div for a. Inputs: dy, own operand (shape), other operand.
template <ProductGrad kGrad>
PlannedNode PlanProductGrad(const CpuNode& n) {
  PlannedNode plan{.shape_only = {1}};
  if (HasShapeOf(n, 0, n.outputs[0])) {
    plan.overwritable = {0};
    if (HasShapeOf(n, 2, n.outputs[0])) plan.overwritable.push_back(2);
  }
  plan.prepare = Call([to = n.outputs[0].shape, dy = n.inputs[0].shape,
                       other = n.inputs[2].shape](const NodeMemory& m) {
    kGrad(Output(m), to, OperandOf(m, 0, dy), OperandOf(m, 2, other));
  });
  return plan;
}

using TernaryFunction = void (*)(float* y, const kernels::Operand& dy, const kernels::Operand& a,
                                 const kernels::Operand& b);

// Inputs: dy, a, b, all of them read.
template <TernaryFunction kGrad>
PlannedNode PlanTernaryGrad(const CpuNode& n) {
  PlannedNode plan;
  if (HasShapeOf(n, 0, n.outputs[0])) plan.overwritable = {0};
  plan.prepare = Call(
      [dy = n.inputs[0].shape, a = n.inputs[1].shape, b = n.inputs[2].shape](const NodeMemory& m) {
        kGrad(Output(m), OperandOf(m, 0, dy), OperandOf(m, 1, a), OperandOf(m, 2, b));
      });
  return plan;
}

using SelectionGrad = void (*)(float* da, kernels::Dimensions to, const kernels::Operand& dy,
                               const int32_t* condition, kernels::Dimensions condition_dimensions);

template <SelectionGrad kGrad>
PlannedNode PlanWhereGrad(const CpuNode& n) {
  PlannedNode plan{.shape_only = {2}};
  if (HasShapeOf(n, 0, n.outputs[0])) plan.overwritable = {0};
  plan.prepare = Call([to = n.outputs[0].shape, dy = n.inputs[0].shape,
                       condition = n.inputs[1].shape](const NodeMemory& m) {
    kGrad(Output(m), to, OperandOf(m, 0, dy), Ids(m, 1), condition);
  });
  return plan;
}

// Plans Accumulate and TotalLoss.
PlannedNode PlanAccumulate(const CpuNode& n) {
  if (n.inputs.size() == 1) return PlanAlias(n);
  PlannedNode plan;
  for (int i = 0; i < n.inputs.size(); ++i) plan.overwritable.push_back(i);
  const Layout layout = CommonLayout(n, plan.overwritable);
  plan.input_layouts.assign(n.inputs.size(), layout);
  plan.output_layouts = {layout};
  plan.prepare = [places = n.layout_table.Places(n.inputs[0], layout)](const NodeMemory& m) {
    std::vector<const float*> terms;
    for (int i = 0; i < m.inputs.size(); ++i) terms.push_back(Input(m, i));
    return [y = Output(m), terms, places](const RunNumbers&) {
      kernels::Accumulate(y, terms, places);
      return absl::OkStatus();
    };
  };
  return plan;
}

}  // namespace

void AddElementwiseKernels(CpuKernelTable& table) {
  table["Relu"] = {PlanFunction<kernels::Relu>};
  table["Silu"] = {PlanFunction<kernels::Silu>};
  table["Tanh"] = {PlanFunction<kernels::Tanh>};
  table["Sigmoid"] = {PlanFunction<kernels::Sigmoid, Gaps::kWouldChange>};
  table["Erf"] = {PlanFunction<kernels::Erf>};
  table["Exp"] = {PlanFunction<kernels::Exp, Gaps::kWouldChange>};
  table["Log"] = {PlanFunction<kernels::Log, Gaps::kWouldChange>};
  table["Sqrt"] = {PlanFunction<kernels::Sqrt>};
  table["Neg"] = {PlanSigned<kernels::Neg, kernels::Neg>};
  table["Gelu"] = {PlanGelu};
  table["ReluGrad"] = {PlanDerivative<kernels::ReluGrad>};
  table["SiluGrad"] = {PlanDerivative<kernels::SiluGrad>};
  table["TanhGrad"] = {PlanDerivative<kernels::TanhGrad>};
  table["SigmoidGrad"] = {PlanDerivative<kernels::SigmoidGrad>};
  table["ErfGrad"] = {PlanDerivative<kernels::ErfGrad>};
  table["ExpGrad"] = {PlanDerivative<kernels::ExpGrad>};
  table["LogGrad"] = {PlanDerivative<kernels::LogGrad, Gaps::kWouldChange>};
  table["SqrtGrad"] = {PlanDerivative<kernels::SqrtGrad, Gaps::kWouldChange>};
  table["NegGrad"] = {PlanFunction<kernels::Neg>};
  table["GeluGrad"] = {PlanGeluGrad};
  table["Abs"] = {PlanSigned<kernels::Abs, kernels::Abs>};
  table["Sin"] = {PlanFunction<kernels::Sin>};
  table["Cos"] = {PlanFunction<kernels::Cos, Gaps::kWouldChange>};
  table["Softplus"] = {PlanFunction<kernels::Softplus, Gaps::kWouldChange>};
  table["Elu"] = {PlanElu};
  table["LeakyRelu"] = {PlanLeakyRelu};
  table["HardSigmoid"] = {PlanHardSigmoid};
  table["Clip"] = {PlanClip};
  table["AbsGrad"] = {PlanDerivative<kernels::AbsGrad>};
  table["SinGrad"] = {PlanDerivative<kernels::SinGrad>};
  table["CosGrad"] = {PlanDerivative<kernels::CosGrad>};
  table["SoftplusGrad"] = {PlanDerivative<kernels::SoftplusGrad>};
  table["EluGrad"] = {PlanEluGrad};
  table["LeakyReluGrad"] = {PlanLeakyReluGrad};
  table["HardSigmoidGrad"] = {PlanHardSigmoidGrad};
  table["ClipGrad"] = {PlanClipGrad};
  table["Floor"] = {PlanFunction<kernels::Floor>};
  table["Ceil"] = {PlanFunction<kernels::Ceil>};
  table["Round"] = {PlanFunction<kernels::Round>};
  table["Sign"] = {PlanFunction<kernels::Sign>};
  table["IsNan"] = {PlanIsNan};
  table["Cast"] = {.plan = PlanCast, .any_type = true};
  table["CastGrad"] = {.plan = PlanCast, .any_type = true};
  table["Dropout"] = {PlanDropout};
  table["DropoutGrad"] = {PlanDropout};
  table["Add"] = {PlanArithmetic<kernels::Add, kernels::Add>};
  table["Sub"] = {PlanArithmetic<kernels::Sub, kernels::Sub>};
  table["Mul"] = {PlanArithmetic<kernels::Mul, kernels::Mul>};
  table["Div"] = {PlanArithmetic<kernels::Div, kernels::Div, Gaps::kWouldChange>};
  table["Mod"] = {PlanArithmetic<kernels::Mod, kernels::Mod, Gaps::kWouldChange>};
  table["Minimum"] = {PlanArithmetic<kernels::Minimum, kernels::Minimum>};
  table["Maximum"] = {PlanArithmetic<kernels::Maximum, kernels::Maximum>};
  table["Equal"] = {PlanComparison<kernels::Equal, kernels::Equal>};
  table["Less"] = {PlanComparison<kernels::Less, kernels::Less>};
  table["LessOrEqual"] = {PlanComparison<kernels::LessOrEqual, kernels::LessOrEqual>};
  table["Pow"] = {PlanBinary<kernels::Pow, Gaps::kWouldChange>};
  table["Where"] = {PlanWhere};
  table["AddGrad"] = {PlanAddGrad};
  table["ExpandGrad"] = {PlanAddGrad};
  table["SubGradB"] = {PlanSubGradB};
  table["MulGrad"] = {PlanProductGrad<kernels::MulGrad>};
  table["DivGradA"] = {PlanProductGrad<kernels::DivGradA>};
  table["DivGradB"] = {PlanTernaryGrad<kernels::DivGradB>};
  table["MinimumGrad"] = {PlanTernaryGrad<kernels::MinimumGrad>};
  table["MaximumGrad"] = {PlanTernaryGrad<kernels::MaximumGrad>};
  table["PowGradA"] = {PlanTernaryGrad<kernels::PowGradA>};
  table["PowGradB"] = {PlanTernaryGrad<kernels::PowGradB>};
  table["WhereGradA"] = {PlanWhereGrad<kernels::WhereGradA>};
  table["WhereGradB"] = {PlanWhereGrad<kernels::WhereGradB>};
  table["Accumulate"] = {PlanAccumulate};
  table["TotalLoss"] = {PlanAccumulate};
}

}  // namespace muster
