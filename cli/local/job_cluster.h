// A job from a file, and a cluster of its own as large as it needs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/local/cluster_lock.h"
#include "cli/local/local_cluster.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cli {

struct JobClusterOptions {
  std::string file;                   // the job's
  std::vector<std::string> settings;  // FIELD=VALUE instead of the file's
  std::string dir;                    // state and logs; "": a new folder in ./muster-runs
  int ps = 0;                         // 0: the job's
  int workers = 0;                    // 0: the job's most
  std::string devices = "cpu";        // of each worker
};

// The job as it would be submitted, with the numbers of processes that the options ask for. The
// errors of CheckJobFile().
absl::StatusOr<v1::JobSpec> ReadJob(const JobClusterOptions& options);

struct JobCluster {
  std::unique_ptr<ClusterLock> lock;  // of its folder, until the cluster has ended
  std::unique_ptr<LocalCluster> cluster;
};

// Everything is attached on return, and dies with the calling thread. ALREADY_EXISTS (reason
// "ALREADY_RUNNING") where a detached cluster runs in the folder; the errors of ClusterLock::Take()
// with `purpose`, LocalCluster::Open() and LocalCluster::Start().
absl::StatusOr<JobCluster> StartClusterFor(const v1::JobSpec& spec,
                                           const JobClusterOptions& options,
                                           const std::string& purpose);

}  // namespace muster::cli
