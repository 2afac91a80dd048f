// Checks a job file as far as this machine can.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/job/job_file.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cli {

// Returns the text of a job file. Returns INVALID_ARGUMENT if the file cannot be read or is larger
// than 1 MiB.
absl::StatusOr<std::string> ReadJobFile(const std::string& path);

// Parses --set values such as "training.steps=500". Returns INVALID_ARGUMENT if one has no field or
// no '='.
absl::StatusOr<JobOverrides> ParseOverrides(const std::vector<std::string>& settings);

struct CheckedJob {
  v1::JobSpec spec;  // the spec that would be submitted
  std::vector<std::string> warnings;
  // A warning if this machine has too little memory left for a worker on its CPU, or "". Always ""
  // for an external model: its worker does not compute.
  std::string memory_warning;
};

// Parses and validates the text, builds the model, and opens the data and the checkpoint to resume
// from. Data paths are relative to the working directory. `file` names the text in errors.
// Returns INVALID_ARGUMENT with the line and field path of every fault.
absl::StatusOr<CheckedJob> CheckJobFile(const std::string& text, const std::string& file,
                                        const JobOverrides& overrides);

}  // namespace muster::cli
