// The model that a command is about: from the zoo, from an ONNX file or from a job file.
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
  int threads = 0;  // of a CPU device; 0: every core that may be used

  // Adds JOB_FILE, --zoo, --arg, --onnx and the fields of model.onnx, --precision, --device,
  // --batch and --threads.
  void AddOptions(Command command);

  // INVALID_ARGUMENT when not exactly one source is given.
  absl::StatusOr<v1::ModelSpec> Spec() const;
  v1::Precision PrecisionValue() const;
  int Threads() const;
};

}  // namespace muster::cli
