#include "lib/graph/lowering/fusion/fusion.h"

namespace muster {

void FuseNodes(const TensorTypes& types, v1::Graph& graph) {
  FuseConv2dBatchNormRelu(graph);
  FuseConv2dRelu(graph);
  FuseBatchNormRelu(graph);
  FuseBatchNormAddRelu(types, graph);
  FuseLinearRelu(graph);
  FuseLinearGelu(graph);
  FuseLinearGradBias(graph);
  FuseLinearGradGelu(graph);
  FuseAddLayerNorm(types, graph);
  FuseAddLayerNormGrad(graph);
}

}  // namespace muster
