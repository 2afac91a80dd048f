#include <utility>

#include "lib/graph/lowering/fusion/fusion.h"
#include "lib/graph/lowering/fusion/graph_edit.h"

namespace muster {

// Fuses Linear and Gelu. The input of Gelu stays a tensor, because backward reads it.
void FuseLinearGelu(v1::Graph& graph) {
  GraphEdit edit(graph);
  for (int i = 0; i < edit.size(); ++i) {
    if (!edit.Is(i, "Linear")) continue;
    const int gelu = edit.FirstReader(edit.node(i).outputs(0), "Gelu");
    if (gelu < 0) continue;
    v1::Node fused = edit.node(i);
    fused.set_op("LinearGelu");
    *fused.mutable_attributes() = edit.node(gelu).attributes();
    fused.set_outputs(0, edit.node(gelu).outputs(0));
    fused.add_outputs(edit.node(i).outputs(0));
    edit.Replace({i, gelu}, std::move(fused));
  }
}

}  // namespace muster
