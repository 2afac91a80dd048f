// Loads the model that a job names, from the zoo, an ONNX file or a safetensors file.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/graph/onnx/initializer_roles.h"
#include "lib/graph/onnx/onnx_import.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

struct Model {
  // Forward, f32, in training form. The graph of an external model has parameters only.
  v1::Graph graph;
  // One per parameter; empty for a model whose graph has initialisers instead.
  std::vector<std::vector<float>> initial_values;
  // The fields of ImportedModel. They are empty unless the model comes from an ONNX file.
  std::vector<InitializerDecision> initializers;
  std::vector<OnnxOutput> outputs;
  std::vector<std::string> notes;
  std::vector<std::string> warnings;
};

// Loads the model like BuildModel (lib/graph/zoo), ImportOnnx (lib/graph/onnx) or
// ReadExternalModel. Reads the file in this process, and files beside an ONNX file if `may_read`
// returns OK for them; null allows all.
absl::StatusOr<Model> LoadModel(
    const v1::ModelSpec& spec,
    std::function<absl::Status(const std::string& path)> may_read = nullptr);

}  // namespace muster
