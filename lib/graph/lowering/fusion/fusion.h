// Fuses nodes into fewer and larger ones: the section "Fused" of lib/graph/ops.md. The fused nodes
// compute the same values, up to rounding, with less memory traffic. A tensor is never fused away
// if another node reads it, or if it is loss, logits, correct or a gradient.
#pragma once

#include "lib/graph/shape_inference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Fuses softmax attention that is written out with MatMul. Requires: the graph is not
// differentiated, and `types` are its types for a batch of at least 2: in a batch of 1, a tensor
// that all samples share would look like one with the batch.
void FuseAttention(const TensorTypes& types, v1::Graph& graph);

// These work on any graph. `types` are its types for a batch of at least 2.
void FuseLinearRelu(v1::Graph& graph);
void FuseLinearGelu(v1::Graph& graph);
void FuseLinearGradBias(v1::Graph& graph);
void FuseLinearGradGelu(v1::Graph& graph);
// Runs before FuseConv2dRelu.
void FuseConv2dBatchNormRelu(v1::Graph& graph);
void FuseConv2dRelu(v1::Graph& graph);
void FuseBatchNormRelu(v1::Graph& graph);
void FuseBatchNormAddRelu(const TensorTypes& types, v1::Graph& graph);
void FuseAddLayerNorm(const TensorTypes& types, v1::Graph& graph);
void FuseAddLayerNormGrad(v1::Graph& graph);

// Runs all of them except attention.
void FuseNodes(const TensorTypes& types, v1::Graph& graph);

}  // namespace muster
