// A local cluster of real processes and a client of its API, for whole-system tests.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/local/local_cluster.h"
#include "proto/muster/v1/checkpoint.grpc.pb.h"
#include "proto/muster/v1/coordinator.grpc.pb.h"

namespace muster {

// One line of a job's metrics.jsonl that has a loss.
struct StepMetrics {
  int64_t step = 0;
  double loss = 0;
  double gradient_norm = 0;  // NaN in a skipped step
  double loss_scale = 0;     // 0: the job has no loss scale
  bool skipped = false;
  friend bool operator==(const StepMetrics&, const StepMetrics&) = default;
};

// The destructor ends all processes. Not thread-safe. Methods that cannot fail in a good run fail
// the test and abort it.
class TrainingCluster {
 public:
  // Starts the cluster in `options.dir`, by default a new folder of the test.
  explicit TrainingCluster(cli::LocalCluster::Options options);

  cli::LocalCluster& members() { return *cluster_; }
  v1::JobService::Stub& jobs() { return *jobs_; }
  v1::FleetService::Stub& fleet() { return *fleet_; }
  v1::CheckpointService::Stub& checkpoints() { return *checkpoints_; }

  // Submits a job file and returns the job's id.
  std::string Submit(const std::string& yaml);
  // Returns the error of a submission that must fail.
  absl::Status SubmitError(const std::string& yaml);

  // Waits up to a minute for a coordinator that restarts.
  v1::Job Get(const std::string& job);
  // Watches until `condition` holds. Fails the test after `timeout`, or if the job ends without it.
  v1::Job Await(const std::string& job, std::function<bool(const v1::Job&)> condition,
                absl::Duration timeout = absl::Minutes(3));
  v1::Job AwaitState(const std::string& job, v1::JobState state,
                     absl::Duration timeout = absl::Minutes(3));
  v1::Job AwaitStep(const std::string& job, int64_t step);
  // Requests a suspension; the job becomes SUSPENDED later.
  void Suspend(const std::string& job);
  // Resumes the job. `resources`, if not null, replace the earlier ones.
  void Resume(const std::string& job, const v1::ResourceSpec* resources = nullptr);
  // Submits and waits for SUCCEEDED; returns the job's id.
  std::string Run(const std::string& yaml);

  std::vector<StepMetrics> Metrics(const std::string& job);
  // Returns the values of every parameter ("" slots) in the checkpoint of `step`, by name.
  std::map<std::string, std::vector<float>> Parameters(const std::string& job, int64_t step);
  // Returns the SHA-256 of the tensor files of a committed checkpoint, by file name.
  std::map<std::string, std::string> Hashes(const std::string& job, int64_t step);

  std::string checkpoint_directory(const std::string& job) const;
  std::string state_dir() const { return dir_ + "/state"; }
  // Returns the end of every member's log, for failure messages.
  std::string Logs() const;

 private:
  std::string dir_;
  std::unique_ptr<cli::LocalCluster> cluster_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::FleetService::Stub> fleet_;
  std::unique_ptr<v1::CheckpointService::Stub> checkpoints_;
};

// Returns `count` times the environment variable TEST_LENGTH, by default 1. A test multiplies its
// steps or epochs by it, so that nightly runs can be longer.
int Lengthened(int count);

// Returns the step of a job's newest checkpoint, or 0 if it has none.
int64_t CheckpointStepOf(const v1::Job& job);

// Returns the largest |a - b| over all elements, or infinity if names or sizes differ.
double LargestDifference(const std::map<std::string, std::vector<float>>& a,
                         const std::map<std::string, std::vector<float>>& b);

// Writes `samples` gray images of `size` x `size` and labels of ten classes as IDX files. Class c
// has a bright bar at row c, with noise from `seed`. Returns the folder, which holds "images" and
// "labels".
std::string MakeIdxData(int samples, int size, uint64_t seed);

}  // namespace muster
