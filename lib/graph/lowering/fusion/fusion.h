// Fewer and larger nodes: the section "Fused" of lib/graph/ops.md. What is replaced has the same
// values, computed with fewer trips to memory. A tensor that somebody else reads, or that is loss,
// logits, correct or a gradient, is never fused away.
#pragma once

#include "lib/graph/shape_inference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Softmax attention written out with MatMul, on a graph that is not differentiated. `types` are
// those of `graph`, for any batch.
void FuseAttention(const TensorTypes& types, v1::Graph& graph);

// On any graph.
void FuseLinearRelu(v1::Graph& graph);
void FuseLinearGelu(v1::Graph& graph);
void FuseLinearGradBias(v1::Graph& graph);
void FuseLinearGradGelu(v1::Graph& graph);
void FuseConv2dBatchNormRelu(v1::Graph& graph);  // before FuseConv2dRelu, which leaves it nothing
void FuseConv2dRelu(v1::Graph& graph);
void FuseBatchNormRelu(v1::Graph& graph);
void FuseBatchNormAddRelu(const TensorTypes& types, v1::Graph& graph);
void FuseAddLayerNorm(const TensorTypes& types, v1::Graph& graph);
void FuseAddLayerNormGrad(v1::Graph& graph);

// All of them but attention.
void FuseNodes(const TensorTypes& types, v1::Graph& graph);

}  // namespace muster
