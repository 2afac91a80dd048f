#include <utility>

#include "lib/graph/lowering/fusion/fusion.h"
#include "lib/graph/lowering/fusion/graph_edit.h"

namespace muster {

// Fuses Linear and Relu. The input of Relu need not stay a tensor, because Relu's gradient reads
// only Relu's output.
void FuseLinearRelu(v1::Graph& graph) {
  GraphEdit edit(graph);
  for (int i = 0; i < edit.size(); ++i) {
    if (!edit.Is(i, "Linear")) continue;
    const int relu = edit.OnlyReader(edit.node(i).outputs(0));
    if (!edit.Is(relu, "Relu")) continue;
    v1::Node fused = edit.node(i);
    fused.set_op("LinearRelu");
    fused.set_outputs(0, edit.node(relu).outputs(0));
    edit.Replace({i, relu}, std::move(fused));
  }
}

}  // namespace muster
