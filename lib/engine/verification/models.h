// Small models for tests of whole graphs, built from ops alone.
#pragma once

#include <cstdint>
#include <string>

#include "lib/engine/reference/reference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::verification {

// Three layers with ReLU and tanh-GELU between them. Inputs: input f32[B, 7], target i32[B] of 5
// classes.
v1::Graph Perceptron();

// Convolutions, batch norms and pools, with residuals around one or more blocks. Inputs: input
// f32[B, 3, 9, 8], target i32[B] of 5 classes.
v1::Graph ConvolutionNet(int64_t residuals = 1);

struct TransformerOptions {
  int64_t blocks = 2;
  double dropout = 0;
  bool fused_attention = true;  // false: MatMul, Softmax, MatMul
  // True: norms come after the residual sums of a block; false: before its layers.
  bool norms_last = false;
};

// Pre-norm blocks with causal attention of 2 heads over 8 channels; the embeddings are tied to the
// head. Inputs: input i32[B, 6] and target i32[B, 6] of 11 tokens; a target of -1 does not count.
v1::Graph Transformer(const TransformerOptions& options = {});

// An LSTM of two directions and a GRU. The loss is the squared error plus a weighted binary
// cross-entropy. Inputs: input f32[B, 4, 3], target f32[B, 2], flag f32[B, 2].
v1::Graph Recurrent();

// Adds a trained token to each sample. The graph computes its loss itself, a mean of squares with
// the batch's share. Inputs: input f32[B, 7], target f32[B, 2].
v1::Graph LossOfItsOwn();

// Linear layers of 700 channels, which a GPU pads in 16 bits, before ops that move and normalise
// whole tensors. Inputs: input f32[B, 7], target i32[B] of 5 classes.
v1::Graph OddLayers();

// A linear layer of 700 channels before a convolution, as for spectrograms. Inputs: input f32[B, 2,
// 3, 7], target i32[B] of 5 classes.
v1::Graph OddImages();

// Returns values for the parameters and for all inputs of `batch` samples: normal numbers, and ids
// and classes below `ids`. With `ignoring`, one target in five is -1.
reference::Tensors RandomTensors(const v1::Graph& graph, int64_t batch, int64_t ids, uint64_t seed,
                                 bool ignoring = false);

// Returns samples [first, first + count) of the inputs, and all parameters.
reference::Tensors Samples(const v1::Graph& graph, const reference::Tensors& tensors, int64_t first,
                           int64_t count);

}  // namespace muster::verification
