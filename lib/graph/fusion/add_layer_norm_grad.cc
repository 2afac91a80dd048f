#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "lib/graph/fusion/fusion.h"
#include "lib/graph/fusion/graph_edit.h"

namespace muster {
namespace {

constexpr int kBias = 5;  // input of LayerNormGradParameters, where there is one

// Of the same norm as the LayerNormGradInput `i`; -1 without.
int ParametersOf(int i, const GraphEdit& edit) {
  const v1::Node& input = edit.node(i);
  const int parameters = edit.FirstReader(input.inputs(0), "LayerNormGradParameters");
  const bool fits = parameters >= 0 && edit.node(parameters).inputs(1) == input.inputs(1) &&
                    edit.node(parameters).inputs(2) == input.inputs(3);
  return fits ? parameters : -1;
}

}  // namespace

// All of them read dy and what was normalised; what a residual stream brings back is added on the
// way.
void FuseAddLayerNormGrad(v1::Graph& graph) {
  GraphEdit edit(graph);
  for (int i = 0; i < edit.size(); ++i) {
    if (!edit.Is(i, "LayerNormGradInput")) continue;
    const v1::Node& input = edit.node(i);
    const std::string& dx = input.outputs(0);
    const int sum = edit.OnlyReader(dx);
    if (!edit.Is(sum, "Accumulate") || edit.node(sum).inputs_size() != 2) continue;
    const int parameters = ParametersOf(i, edit);
    if (parameters < 0) continue;
    const v1::Node& added = edit.node(sum);

    v1::Node fused = input;
    fused.set_op("AddLayerNormGrad");
    fused.clear_inputs();
    fused.add_inputs(input.inputs(0));
    fused.add_inputs(added.inputs(added.inputs(0) == dx ? 1 : 0));
    fused.mutable_inputs()->Add(input.inputs().begin() + 1, input.inputs().end());
    if (edit.node(parameters).inputs_size() > kBias) {
      fused.add_inputs(edit.node(parameters).inputs(kBias));
    }
    fused.set_outputs(0, added.outputs(0));
    fused.mutable_outputs()->MergeFrom(edit.node(parameters).outputs());
    std::array<int, 3> members = {i, sum, parameters};
    std::ranges::sort(members);
    edit.Replace(members, std::move(fused));
  }
}

}  // namespace muster
