// Functions of single elements. Where all tensors have one shape they work on any layout that all
// share; with broadcasting on the plain one.
#include "kernels/elementwise.h"

#include <algorithm>

#include "kernels/activation.h"
#include "kernels/conversion.h"
#include "kernels/dropout.h"
#include "lib/engine/cpu/binding.h"
#include "lib/engine/element_type.h"
#include "lib/graph/attributes.h"

namespace muster {
namespace {

// --- One variable -------------------------------------------------------------------------------

using Function = void (*)(float* y, const float* x, int64_t n);
using Derivative = void (*)(float* dx, const float* dy, const float* value, int64_t n);

// What lies in the gaps of a padded layout is zero and must stay so.
enum class Gaps { kStayZero, kWouldChange };

Layout LayoutFor(const CpuNode& n, const std::vector<int>& inputs, Gaps gaps) {
  const Layout layout = CommonLayout(n, inputs);
  return gaps == Gaps::kWouldChange && n.layout_table[layout].is_padded() ? Layout::kPlain : layout;
}

template <Function kFunction, Gaps kGaps = Gaps::kStayZero>
PlannedNode PlanFunction(const CpuNode& n) {
  const Layout layout = LayoutFor(n, {0}, kGaps);
  return {.input_layouts = {layout},
          .output_layouts = {layout},
          .overwritable = {0},
          .prepare = Call([places = n.layout_table.Places(n.inputs[0], layout)](
                              const NodeMemory& m) { kFunction(Output(m), Input(m, 0), places); })};
}

template <Derivative kDerivative, Gaps kGaps = Gaps::kStayZero>
PlannedNode PlanDerivative(const CpuNode& n) {
  const Layout layout = LayoutFor(n, {0, 1}, kGaps);
  return {
      .input_layouts = {layout, layout},
      .output_layouts = {layout},
      .overwritable = {0, 1},
      .prepare = Call([places = n.layout_table.Places(n.inputs[0], layout)](const NodeMemory& m) {
        kDerivative(Output(m), Input(m, 0), Input(m, 1), places);
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

// Also of CastGrad, which has a second, unread input.
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

// Forward and backward are the same function. Plain: an element's place is its position.
PlannedNode PlanDropout(const CpuNode& n) {
  const auto rate = static_cast<float>(NumberAttribute(*n.node, "rate"));
  const int64_t salt = IntegerAttribute(*n.node, "salt");
  return {.overwritable = {0},
          .prepare = Call(
              [rate, salt, size = n.elements(0)](const NodeMemory& m, const RunNumbers& numbers) {
                const int64_t first = numbers.first_position * (size / numbers.samples);
                kernels::Dropout(Output(m), Input(m, 0), size, first, rate,
                                 {.seed = numbers.seed, .step = numbers.step, .salt = salt});
              })};
}

// --- Two variables and more ---------------------------------------------------------------------

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

// dy summed over what was broadcast. Also of ExpandGrad.
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

// Of Mul, and of Div for a: dy, own operand (shape), other operand.
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

// dy, a, b, all of them read.
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

// Also of TotalLoss.
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
  table["Neg"] = {PlanFunction<kernels::Neg>};
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
  table["Cast"] = {.plan = PlanCast, .any_type = true};
  table["CastGrad"] = {.plan = PlanCast, .any_type = true};
  table["Dropout"] = {PlanDropout};
  table["DropoutGrad"] = {PlanDropout};
  table["Add"] = {PlanBinary<kernels::Add>};
  table["Sub"] = {PlanBinary<kernels::Sub>};
  table["Mul"] = {PlanBinary<kernels::Mul>};
  table["Div"] = {PlanBinary<kernels::Div, Gaps::kWouldChange>};
  table["Pow"] = {PlanBinary<kernels::Pow, Gaps::kWouldChange>};
  table["Where"] = {PlanWhere};
  table["AddGrad"] = {PlanAddGrad};
  table["ExpandGrad"] = {PlanAddGrad};
  table["SubGradB"] = {PlanSubGradB};
  table["MulGrad"] = {PlanProductGrad<kernels::MulGrad>};
  table["DivGradA"] = {PlanProductGrad<kernels::DivGradA>};
  table["DivGradB"] = {PlanTernaryGrad<kernels::DivGradB>};
  table["PowGradA"] = {PlanTernaryGrad<kernels::PowGradA>};
  table["PowGradB"] = {PlanTernaryGrad<kernels::PowGradB>};
  table["WhereGradA"] = {PlanWhereGrad<kernels::WhereGradA>};
  table["WhereGradB"] = {PlanWhereGrad<kernels::WhereGradB>};
  table["Accumulate"] = {PlanAccumulate};
  table["TotalLoss"] = {PlanAccumulate};
}

}  // namespace muster
