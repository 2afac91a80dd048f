#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "lib/graph/lowering/fusion/fusion.h"
#include "lib/graph/lowering/fusion/graph_edit.h"

namespace muster {
namespace {

constexpr int kBias = 5;  // optional input of LayerNormGradParameters

// Returns the LayerNormGradParameters of the same norm as LayerNormGradInput `i`; -1 if there is
// none.
int ParametersOf(int i, const GraphEdit& edit) {
  const v1::Node& input = edit.node(i);
  const int parameters = edit.FirstReader(input.inputs(0), "LayerNormGradParameters");
  const bool fits = parameters >= 0 && edit.node(parameters).inputs(1) == input.inputs(1) &&
                    edit.node(parameters).inputs(2) == input.inputs(3);
  return fits ? parameters : -1;
}

bool IsSumOfTwo(int i, const GraphEdit& edit) {
  return edit.Is(i, "Accumulate") && edit.node(i).inputs_size() == 2;
}

// Returns the fused node `op`. Its inputs are dy, `second` and the other inputs of
// LayerNormGradInput `input`. Its outputs are those of `input` and `parameters`.
v1::Node Fused(const char* op, const std::string& dy, const std::string& second,
               const v1::Node& input, const v1::Node& parameters) {
  v1::Node fused = input;
  fused.set_op(op);
  fused.clear_inputs();
  fused.add_inputs(dy);
  fused.add_inputs(second);
  fused.mutable_inputs()->Add(input.inputs().begin() + 1, input.inputs().end());
  if (parameters.inputs_size() > kBias) fused.add_inputs(parameters.inputs(kBias));
  fused.mutable_outputs()->MergeFrom(parameters.outputs());
  return fused;
}

bool Replace(std::array<int, 3> members, v1::Node fused, GraphEdit& edit) {
  std::ranges::sort(members);
  return edit.Replace(members, std::move(fused));
}

// Fuses a norm before a layer: the gradient from the residual stream is added to dx in the same
// node.
bool FuseWithSum(int i, int parameters, GraphEdit& edit) {
  const v1::Node& input = edit.node(i);
  const std::string& dx = input.outputs(0);
  const int sum = edit.OnlyReader(dx);
  if (!IsSumOfTwo(sum, edit)) return false;
  const v1::Node& added = edit.node(sum);
  v1::Node fused = Fused("AddLayerNormGrad", input.inputs(0),
                         added.inputs(added.inputs(0) == dx ? 1 : 0), input, edit.node(parameters));
  fused.set_outputs(0, added.outputs(0));
  return Replace({i, sum, parameters}, std::move(fused), edit);
}

// Fuses the derivative of a norm whose output has two readers, the next layer and the residual
// stream. The fused node adds their two gradients, which replaces an Accumulate node.
void FuseWithGradients(int i, int parameters, GraphEdit& edit) {
  const v1::Node& input = edit.node(i);
  const std::string& dy = input.inputs(0);
  const int sum = edit.Maker(dy);
  if (!IsSumOfTwo(sum, edit) ||
      !edit.IsReadBy(dy, {std::min(i, parameters), std::max(i, parameters)})) {
    return;
  }
  v1::Node fused = Fused("AccumulateLayerNormGrad", edit.node(sum).inputs(0),
                         edit.node(sum).inputs(1), input, edit.node(parameters));
  Replace({i, sum, parameters}, std::move(fused), edit);
}

}  // namespace

// Fuses the LayerNormGradInput and LayerNormGradParameters of a norm. Both read dy and the
// normalised tensor; the fused node reads them once.
void FuseAddLayerNormGrad(v1::Graph& graph) {
  GraphEdit edit(graph);
  for (int i = 0; i < edit.size(); ++i) {
    if (!edit.Is(i, "LayerNormGradInput")) continue;
    const int parameters = ParametersOf(i, edit);
    if (parameters < 0 || FuseWithSum(i, parameters, edit)) continue;
    FuseWithGradients(i, parameters, edit);
  }
}

}  // namespace muster
