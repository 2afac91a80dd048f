// Writes products with transposed weights as linear layers.
#pragma once

#include "lib/graph/shape_inference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Replaces MatMul(x, Transpose(w)) by Linear(x, w) if w is a parameter of two dimensions. Exports
// of PyTorch have linear layers in this form, which SplitTensors() does not divide. A Transpose
// that no node reads any more is removed. Requires: `types` are those of `graph`, which is not
// differentiated.
void UseLinearForm(const TensorTypes& types, v1::Graph& graph);

}  // namespace muster
