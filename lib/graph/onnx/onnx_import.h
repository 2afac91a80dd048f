// Imports an ONNX file as a graph that can be trained.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/graph/onnx/initializer_roles.h"
#include "lib/graph/onnx/onnx_file.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// An output of the file that is not a constant.
struct OnnxOutput {
  std::string name;
  v1::DType dtype = v1::DTYPE_F32;
  std::vector<int64_t> shape;  // a negative size is so many times the batch: -1 is the batch

  // Returns "f32[B, 10]", with the batch as B.
  std::string ToString() const;
};

// The inputs and outputs of a file.
struct OnnxSignature {
  std::vector<v1::GraphInput> inputs;
  std::vector<OnnxOutput> outputs;
};

struct ImportedModel {
  v1::Graph graph;
  std::vector<std::vector<float>> initial_values;  // by parameter
  // The roles of the file's floating initialisers. Parameters and statistics that do not lead to
  // the loss are left out.
  std::vector<InitializerDecision> initializers;
  std::vector<OnnxOutput> outputs;    // of the file
  std::vector<std::string> notes;     // what was separated or stays one
  std::vector<std::string> warnings;  // what may not be as the user means it
};

// Returns the forward graph of the file's model in training form, with the loss that `model` names.
//
// - DecideRoles decides which initialisers are parameters, statistics and constants;
//   SeparateInitializers decides which of them are one tensor.
// - Values that depend only on shapes and constants are computed here.
// - Dropout and batch norm train, whether the file was exported for training or for inference.
// - The first dimension of every input is the batch, even if the file gives it a size. If the file
//   leaves only the second dimension open, that one is the batch.
// - Integers and booleans become i32.
//
// Returns NOT_FOUND or INVALID_ARGUMENT, reason "MODEL_NOT_FOUND" or "MODEL_INVALID". The message
// has up to 50 faults, one per operator and cause, each with its count and first node. For
// `may_read` see OnnxFile.
absl::StatusOr<ImportedModel> ImportOnnx(const v1::OnnxModel& model,
                                         OnnxFile::MayRead may_read = nullptr);

// Imports the file at `path` without a loss, so that the caller can choose one. Returns the errors
// of ImportOnnx().
absl::StatusOr<OnnxSignature> ReadOnnxSignature(const std::string& path);

// Writes the file of `model` to `path` with its parameters' values replaced, like OnnxFile::Save.
// The result also has the initialisers that SeparateInitializers copied.
absl::Status ExportOnnx(const v1::OnnxModel& model, const std::string& path,
                        const absl::flat_hash_map<std::string, std::vector<float>>& values);

}  // namespace muster
