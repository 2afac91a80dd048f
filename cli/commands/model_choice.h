// The model that a command works on: from the zoo, an ONNX file or a job file.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/framework/command.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cli {

struct ModelChoice {
  std::string job_file;
  std::string zoo;
  std::vector<std::string> args;  // NAME=VALUE
  v1::OnnxModel onnx;
  std::string precision = "fp32";
  std::string device = "cpu";
  int64_t batch = 8;
  int threads = 0;  // of a CPU device; 0: all usable cores

  // Adds JOB_FILE, --zoo, --arg, --onnx and the fields of model.onnx, --precision, --device,
  // --batch and --threads.
  void AddOptions(Command command);

  // Returns the model. Returns INVALID_ARGUMENT unless exactly one source is given.
  absl::StatusOr<v1::ModelSpec> Spec() const;
  v1::Precision PrecisionValue() const;
  int Threads() const;
};

}  // namespace muster::cli
