#include <algorithm>
#include <utility>

#include "lib/graph/lowering/fusion/fusion.h"
#include "lib/graph/lowering/fusion/graph_edit.h"

namespace muster {

// Fuses LinearGradWeight and LinearGradBias, because both read all of dy. The fused node takes the
// position of the earlier one.
void FuseLinearGradBias(v1::Graph& graph) {
  GraphEdit edit(graph);
  for (int i = 0; i < edit.size(); ++i) {
    if (!edit.Is(i, "LinearGradWeight")) continue;
    const int bias = edit.FirstReader(edit.node(i).inputs(0), "LinearGradBias");
    if (bias < 0) continue;
    v1::Node fused = edit.node(i);
    fused.set_op("LinearGradWeightBias");
    fused.add_outputs(edit.node(bias).outputs(0));
    edit.Replace({std::min(i, bias), std::max(i, bias)}, std::move(fused));
  }
}

// Fuses LinearGradInput and GeluGrad, unless another node also reads the gradient of Gelu's output.
void FuseLinearGradGelu(v1::Graph& graph) {
  GraphEdit edit(graph);
  for (int i = 0; i < edit.size(); ++i) {
    if (!edit.Is(i, "LinearGradInput")) continue;
    const int gelu = edit.OnlyReader(edit.node(i).outputs(0));
    if (!edit.Is(gelu, "GeluGrad") || edit.node(gelu).inputs(0) != edit.node(i).outputs(0))
      continue;
    v1::Node fused = edit.node(i);
    fused.set_op("LinearGradInputGelu");
    *fused.mutable_attributes() = edit.node(gelu).attributes();
    fused.add_inputs(edit.node(gelu).inputs(1));
    fused.set_outputs(0, edit.node(gelu).outputs(0));
    edit.Replace({i, gelu}, std::move(fused));
  }
}

}  // namespace muster
