#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "lib/graph/attributes.h"
#include "lib/graph/operators/families.h"

namespace muster {
namespace {

// Returns a fused op with the inputs, outputs, attributes and shape rules of `base`. It has no
// gradient rules, because fusion comes after differentiation.
Operator Extended(absl::string_view base, const std::vector<Operator>& family,
                  absl::string_view name) {
  auto found = std::ranges::find(family, base, &Operator::name);
  CHECK(found != family.end()) << base;
  Operator op = *found;
  op.name = name;
  op.gradients.clear();
  return op;
}

Operator LinearGelu() {
  Operator op = Extended("Linear", MatrixOperators(), "LinearGelu");
  op.outputs.push_back("preactivation T[..., outer]");
  op.attributes = {Integer("exact").Default(0).Within(0, 1)};
  return op;
}

Operator LinearGradWeightBias() {
  Operator op = Extended("LinearGradWeight", MatrixOperators(), "LinearGradWeightBias");
  op.outputs.push_back("db T[outer]");
  return op;
}

Operator LinearGradInputGelu() {
  Operator op = Extended("LinearGradInput", MatrixOperators(), "LinearGradInputGelu");
  op.inputs.push_back("preactivation T[..., inner]");
  op.attributes = {Integer("exact").Default(0).Within(0, 1)};
  return op;
}

Operator BatchNormReluGrad() {
  Operator op = Extended("BatchNormGrad", NormalisationOperators(), "BatchNormReluGrad");
  op.inputs[5] = "bias T[channel]";  // shows where the sum was negative
  return op;
}

// Returns the op at the end of a residual block, relu(BatchNorm(x) + addend).
Operator BatchNormAddRelu() {
  Operator op = Extended("BatchNorm", NormalisationOperators(), "BatchNormAddRelu");
  op.inputs.insert(op.inputs.begin() + 1, "addend T[batch, channel, ...]");
  return op;
}

Operator BatchNormAddReluGrad() {
  Operator op = Extended("BatchNormGrad", NormalisationOperators(), "BatchNormAddReluGrad");
  op.inputs.insert(op.inputs.begin() + 1, "y T[batch, channel, ...]");
  op.outputs.insert(op.outputs.begin() + 1, "daddend T[batch, channel, ...]");
  return op;
}

Operator Conv2dBatchNormRelu() {
  Operator op = Extended("Conv2d", ImageOperators(), "Conv2dBatchNormRelu");
  op.inputs.pop_back();
  op.inputs.insert(op.inputs.end(),
                   {"running_mean f32[output channel]", "running_variance f32[output channel]",
                    "bias T[output channel]", "gain? T[output channel]"});
  op.attributes.push_back(Number("epsilon").Default(1e-5).Within(0, 1));
  return op;
}

Operator AddLayerNorm() {
  return {
      .name = "AddLayerNorm",
      .inputs = {"a T[..., channel]", "b T[..., channel]", "gain T[channel]", "bias? T[channel]"},
      .outputs = {"y T[..., channel]", "mean f32[...]", "rstd f32[...]", "sum T[..., channel]"},
      .attributes = {Number("epsilon").Default(1e-5).Within(0, 1)}};
}

// Returns the gradient op of AddLayerNorm. `dsum` is the part of the sum's gradient that comes from
// other readers of the sum.
Operator AddLayerNormGrad() {
  return {
      .name = "AddLayerNormGrad",
      .inputs = {"dy T[..., channel]", "dsum T[..., channel]", "sum T[..., channel]",
                 "gain T[channel]", "mean f32[...]", "rstd f32[...]", "bias?(shape) T[channel]"},
      .outputs = {"dx T[..., channel]", "dgain T[channel]", "dbias? T[channel]"},
      .attributes = {Number("epsilon").Default(1e-5).Within(0, 1)}};
}

// Returns the gradient op of a norm whose result has two readers.
Operator AccumulateLayerNormGrad() {
  Operator op = AddLayerNormGrad();
  op.name = "AccumulateLayerNormGrad";
  op.inputs[1] = "dy_second T[..., channel]";
  return op;
}

Operator AccumulateBatchNormAddReluGrad() {
  Operator op = BatchNormAddReluGrad();
  op.name = "AccumulateBatchNormAddReluGrad";
  op.inputs.insert(op.inputs.begin() + 1, "dy_second T[batch, channel, ...]");
  return op;
}

}  // namespace

std::vector<Operator> FusedOperators() {
  return {
      Extended("Linear", MatrixOperators(), "LinearRelu"),
      LinearGelu(),
      LinearGradWeightBias(),
      LinearGradInputGelu(),
      Extended("Conv2d", ImageOperators(), "Conv2dRelu"),
      Extended("BatchNorm", NormalisationOperators(), "BatchNormRelu"),
      BatchNormReluGrad(),
      BatchNormAddRelu(),
      BatchNormAddReluGrad(),
      AccumulateBatchNormAddReluGrad(),
      Conv2dBatchNormRelu(),
      AddLayerNorm(),
      AddLayerNormGrad(),
      AccumulateLayerNormGrad(),
  };
}

}  // namespace muster
