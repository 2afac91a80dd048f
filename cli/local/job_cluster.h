// Starts a local cluster for one job, and reads the job from a file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/local/cluster_lock.h"
#include "cli/local/local_cluster.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cli {

struct JobClusterOptions {
  std::string file;                   // path of the job file
  std::vector<std::string> settings;  // FIELD=VALUE, each replaces a field of the file
  std::string dir;                    // for state and logs; "": a new folder in ./muster-runs
  int ps = 0;                         // 0: as many as the job asks for
  int workers = 0;                    // 0: the job's maximum
  std::string devices = "cpu";        // --devices of each worker; "cpu": see DevicesFor()
  int threads = 0;                    // of each device; 0: see ThreadsFor()
};

// Returns the spec that would be submitted, with the numbers of processes from the options. Returns
// the errors of CheckJobFile().
absl::StatusOr<v1::JobSpec> ReadJob(const JobClusterOptions& options);

// Returns `word` as a POSIX shell reads it: in single quotes if it has special characters.
std::string ShellWord(absl::string_view word);

// Returns the arguments of `muster run` that continue the job from a checkpoint, as shell words.
// Repeats the options, except a setting of checkpoint.resume_from.
std::string ArgumentsToResume(const JobClusterOptions& options, const std::string& checkpoint);

// Returns the threads of each CPU device, so that the job's workers share all cores but one. The
// bits depend on the number of threads. So logical workers get as many on any number of workers: as
// if each was a worker. The devices that share a model share the threads of their worker.
int ThreadsFor(const v1::ResourceSpec& resources, int cores);

// Returns the --devices of each worker: `devices`, or as many CPU devices as share a model if that
// is "cpu".
std::string DevicesFor(const v1::ResourceSpec& resources, const std::string& devices);

struct JobCluster {
  std::unique_ptr<ClusterLock> lock;  // on the folder, until the cluster has ended
  std::unique_ptr<LocalCluster> cluster;
};

// Starts a cluster in `options.dir`, or in a new folder ./muster-runs/NAME-N if that is "". All
// members are attached on return and die with the calling thread. `purpose` is passed to
// ClusterLock::Take().
// Returns ALREADY_EXISTS (reason "ALREADY_RUNNING") if a detached cluster runs in the folder, or
// the errors of ClusterLock::Take(), LocalCluster::Open() and LocalCluster::Start().
absl::StatusOr<JobCluster> StartOwnCluster(LocalCluster::Options options, const std::string& name,
                                           const std::string& purpose);

// Starts a cluster for the job, as StartOwnCluster() does. Returns INVALID_ARGUMENT if its devices
// cannot share the model as resources.tensor_parallel wants, because the job would wait for ever.
absl::StatusOr<JobCluster> StartClusterFor(const v1::JobSpec& spec,
                                           const JobClusterOptions& options,
                                           const std::string& purpose);

}  // namespace muster::cli
