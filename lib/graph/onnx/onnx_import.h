// From an ONNX file to a graph that can be trained.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

struct ImportedModel {
  v1::Graph graph;
  std::vector<std::vector<float>> initial_values;  // by parameter
};

// The forward graph of the file's model in training form, with the loss that `model` names.
//
//   Initialisers that are floating and not scalars become trained parameters under their names,
//   running means and variances of batch norms statistics; the others are constants. What depends
//   on shapes alone is computed here. Dropout and batch norm train whether the file was exported
//   for training or for inference. The first dimension of every input is the batch, also where the
//   file gives it a size. Integers and booleans become i32.
//
// NOT_FOUND or INVALID_ARGUMENT, reason "MODEL_NOT_FOUND" or "MODEL_INVALID". Operators that are
// not supported are named all at once, with their nodes; other faults name the first node.
absl::StatusOr<ImportedModel> ImportOnnx(const v1::OnnxModel& model);

}  // namespace muster
