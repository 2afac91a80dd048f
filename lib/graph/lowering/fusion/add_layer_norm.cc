#include <utility>

#include "lib/graph/lowering/fusion/fusion.h"
#include "lib/graph/lowering/fusion/graph_edit.h"

namespace muster {

// Fuses Add and LayerNorm. The sum stays a tensor, because it is the residual stream, and backward
// reads it too.
void FuseAddLayerNorm(const TensorTypes& types, v1::Graph& graph) {
  GraphEdit edit(graph);
  for (int i = 0; i < edit.size(); ++i) {
    if (!edit.Is(i, "Add")) continue;
    const v1::Node& add = edit.node(i);
    if (types.at(add.inputs(0)) != types.at(add.inputs(1))) continue;
    const int norm = edit.FirstReader(add.outputs(0), "LayerNorm");
    if (norm < 0 || edit.node(norm).inputs(0) != add.outputs(0)) continue;
    v1::Node fused = edit.node(norm);
    fused.set_op("AddLayerNorm");
    *fused.mutable_inputs() = add.inputs();
    fused.mutable_inputs()->Add(edit.node(norm).inputs().begin() + 1,
                                edit.node(norm).inputs().end());
    fused.add_outputs(add.outputs(0));
    edit.Replace({i, norm}, std::move(fused));
  }
}

}  // namespace muster
