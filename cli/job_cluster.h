// A job from a file, and a cluster of its own as large as it needs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/local_cluster.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cli {

struct JobClusterOptions {
  std::string file;                   // the job's
  std::vector<std::string> settings;  // FIELD=VALUE instead of the file's
  std::string dir;                    // state and logs; "": a new folder
  int ps = 0;                         // 0: the job's
  int workers = 0;                    // 0: the job's most
  std::string devices = "cpu";        // of each worker
};

// The job as it would be submitted, with the numbers of processes that the options ask for. The
// errors of CheckJobFile().
absl::StatusOr<v1::JobSpec> ReadJob(const JobClusterOptions& options);

// Everything is attached on return, and dies with the calling thread.
absl::StatusOr<std::unique_ptr<LocalCluster>> StartClusterFor(const v1::JobSpec& spec,
                                                              const JobClusterOptions& options);

}  // namespace muster::cli
