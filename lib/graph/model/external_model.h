// Reads the parameters of a model that a program outside of Muster computes.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// The key in a model file's metadata that names the statistics, as a JSON list.
inline constexpr char kStatisticsKey[] = "muster.statistics";

struct ExternalParameters {
  v1::Graph graph;  // parameters only, in the order of the file's data
  std::vector<std::vector<float>> initial_values;  // one per parameter
};

// Reads the safetensors file of `model`. Values of f16 and bf16 become f32. Weight decay applies to
// every parameter that is not a statistic. A statistic is replaced in every step.
//
// Returns NOT_FOUND or DATA_LOSS like ReadSafetensorsHeader(). Returns INVALID_ARGUMENT for tensors
// that cannot be parameters, and if no tensor is trained. Messages name the file and the tensor.
absl::StatusOr<ExternalParameters> ReadExternalModel(const v1::ExternalModel& model);

}  // namespace muster
