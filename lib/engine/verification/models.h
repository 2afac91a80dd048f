// Small models for tests of whole graphs, built from nothing but ops.
#pragma once

#include <cstdint>
#include <string>

#include "lib/engine/reference/reference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::verification {

// input f32[B, 7], target i32[B] of 5 classes: three layers with ReLU and tanh-GELU between.
v1::Graph Perceptron();

// input f32[B, 3, 9, 8], target i32[B] of 5 classes: convolutions, batch norms, pools, residuals
// around one or two blocks.
v1::Graph ConvolutionNet(int64_t residuals = 1);

struct TransformerOptions {
  int64_t blocks = 2;
  double dropout = 0;
  bool fused_attention = true;  // else MatMul, Softmax, MatMul
  bool norms_last = false;      // of each block's sums; else of what goes into its layers
};

// input i32[B, 6] and target i32[B, 6] of 11 tokens, target -1 does not count: pre-norm blocks with
// causal attention of 2 heads over 8 channels, embeddings tied to the head.
v1::Graph Transformer(const TransformerOptions& options = {});

// input f32[B, 4, 3], target f32[B, 2]: an LSTM of two directions, a GRU, squared error and,
// weighted, binary cross-entropy against target "flag" f32[B, 2].
v1::Graph Recurrent();

// input f32[B, 7], target f32[B, 2]: a token added to each sample, a mean of squares that the graph
// computes by itself, in the share of the batch.
v1::Graph LossOfItsOwn();

// input f32[B, 7], target i32[B] of 5 classes: linear layers of 700 channels, which a GPU pads in
// 16 bits, before what moves and normalises whole tensors.
v1::Graph OddLayers();

// input f32[B, 2, 3, 7], target i32[B] of 5 classes: a linear layer of 700 channels before a
// convolution, as of spectrograms.
v1::Graph OddImages();

// Values for the parameters and for all inputs of `batch` samples: normal numbers; ids and classes
// below `ids`, and one target in five -1 where `ignoring`.
reference::Tensors RandomTensors(const v1::Graph& graph, int64_t batch, int64_t ids, uint64_t seed,
                                 bool ignoring = false);

// Samples [first, first + count) of the inputs; parameters as they are.
reference::Tensors Samples(const v1::Graph& graph, const reference::Tensors& tensors, int64_t first,
                           int64_t count);

}  // namespace muster::verification
