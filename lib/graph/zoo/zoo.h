// Models by name. Each model's file in this folder names the paper or code that it follows.
#pragma once

#include "absl/status/statusor.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Returns the forward graph of a zoo model in training form: inputs, a loss, and for classifiers
// logits and correct. docs/job_spec.md has a table of the models, their inputs and arguments. With
// small arguments every model is a toy.
//
// In translation models and in bert, token id 0 is padding, which attention does not see in a
// source. As a target of a translation it does not count; bert does not count targets of -100.
// Tensors of a repeated block share a prefix, "blocks.3." or "layer2.0.". Batch norms have their
// running statistics as parameters that the optimizer does not train.
//
// Returns INVALID_ARGUMENT (reason "MODEL_INVALID"), naming the argument: an unknown model or
// argument, a wrong type, a value out of range, heads that do not divide channels, or more than
// limits::kParameterElementsMax elements.
absl::StatusOr<v1::Graph> BuildModel(const v1::ModelSpec& spec);

}  // namespace muster
