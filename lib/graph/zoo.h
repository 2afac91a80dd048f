// Models by name: "linear", "mlp", "lenet", "gpt".
#pragma once

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// The forward graph, with inputs "input" and "target", a loss, and for classifiers logits and
// correct.
//
//   linear   input f32[B, inputs], target f32[B, outputs]; inputs (1), outputs (1)
//   mlp      input f32[B, inputs], target i32[B]; inputs (784), hidden ("256,128": comma list or
//            one integer, "" for none), classes (10). A dataset of images [B, 1, H, W] feeds it:
//            the input is declared [B, channels, height, width] when height and width are given
//            (channels (1)), and flattened.
//   lenet    input f32[B, 1, 28, 28], target i32[B]; LeCun et al. 1998 with ReLU and max pooling;
//            classes (10)
//   gpt      input i32[B, T], target i32[B, T]; layers (4), heads (4), channels (128), context
//            (64) = T, vocabulary (256), tied (false: whether the head shares the embedding's
//            table); Radford et al. 2019 (pre-norm, GELU, no dropout). It has logits; nothing
//            counts as correct, for a sample is T predictions
//
// INVALID_ARGUMENT (reason "MODEL_INVALID") names the argument: unknown model or argument, wrong
// type, out of range, heads not dividing channels, more than limits::kParameterElementsMax
// elements.
absl::StatusOr<v1::Graph> BuildModel(const v1::ModelSpec& spec);

}  // namespace muster
