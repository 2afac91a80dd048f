// What can be found wrong with a job file on this machine.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/job/job_file.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cli {

// A job file's text. INVALID_ARGUMENT when it cannot be read or is larger than a job file may be.
absl::StatusOr<std::string> ReadJobFile(const std::string& path);

// "training.steps=500" from the command line. INVALID_ARGUMENT without '='.
absl::StatusOr<JobOverrides> ParseOverrides(const std::vector<std::string>& settings);

struct CheckedJob {
  v1::JobSpec spec;  // as it would be submitted
  std::vector<std::string> warnings;
  // Says that this machine has too little memory left for a worker on its CPU; "" if it has enough.
  std::string memory_warning;
};

// Parses, validates, builds the model and opens the data and the checkpoint directory to resume
// from. INVALID_ARGUMENT with every fault, its line and its field path. Data paths are relative to
// the working directory.
absl::StatusOr<CheckedJob> CheckJobFile(const std::string& text, const std::string& file,
                                        const JobOverrides& overrides);

}  // namespace muster::cli
