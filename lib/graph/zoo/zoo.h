// Models by name, each from the paper or code that its file in this folder names.
#pragma once

#include "absl/status/statusor.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// The forward graph of a zoo model, in training form: inputs, a loss, and for what classifies
// logits and correct. docs/job_spec.md has the table of the models, their inputs and arguments;
// every one scales down to a toy by its arguments.
//
// Where a model reads token ids, id 0 is padding: attention does not see it in a source, and in a
// target it does not count. Tensors of a repeated block share a prefix, "blocks.3." or "layer2.0.".
// Batch norms hold their running statistics as parameters that the optimizer does not train.
//
// INVALID_ARGUMENT (reason "MODEL_INVALID") names the argument: unknown model or argument, wrong
// type, out of range, heads not dividing channels, more than limits::kParameterElementsMax
// elements.
absl::StatusOr<v1::Graph> BuildModel(const v1::ModelSpec& spec);

}  // namespace muster
