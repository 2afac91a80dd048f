#include <utility>

#include "lib/graph/lowering/fusion/fusion.h"
#include "lib/graph/lowering/fusion/graph_edit.h"

namespace muster {

// Applies only to evaluation, in which BatchNorm is a factor and a sum per channel.
void FuseConv2dBatchNormRelu(v1::Graph& graph) {
  GraphEdit edit(graph);
  for (int i = 0; i < edit.size(); ++i) {
    // The convolution must have no bias, as is usual before a BatchNorm: the fused op has no input
    // for it.
    if (!edit.Is(i, "Conv2d") || edit.node(i).inputs_size() > 2) continue;
    const int norm = edit.OnlyReader(edit.node(i).outputs(0));
    if (!edit.Is(norm, "BatchNormInference")) continue;
    const int relu = edit.OnlyReader(edit.node(norm).outputs(0));
    if (!edit.Is(relu, "Relu")) continue;
    v1::Node fused = edit.node(i);
    fused.set_op("Conv2dBatchNormRelu");
    const v1::Node& statistics = edit.node(norm);
    fused.mutable_inputs()->Add(statistics.inputs().begin() + 1, statistics.inputs().end());
    for (const auto& [name, value] : statistics.attributes()) {
      (*fused.mutable_attributes())[name] = value;
    }
    fused.set_outputs(0, edit.node(relu).outputs(0));
    edit.Replace({i, norm, relu}, std::move(fused));
  }
}

}  // namespace muster
