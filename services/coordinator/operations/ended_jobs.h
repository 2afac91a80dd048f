// Deletes jobs that ended long ago, so that their number stays limited.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "lib/concurrency/repeater.h"
#include "lib/limits/limits.h"
#include "services/coordinator/operations/user_operations.h"
#include "services/coordinator/registry/job_registry.h"

namespace muster {

// Deletes ended jobs as DeleteJob does: the oldest beyond a number, and each job after its own
// ttl_after_finished or the operator's. Keeps a job that has a checkpoint unless the operator or
// the job file allows the deletion, so that trained values are never deleted silently. Keeps
// damaged jobs, because a user may want to inspect them. Thread-safe.
class EndedJobs {
 public:
  struct Retention {
    int64_t keep = limits::kEndedJobsKept;  // the newest ended jobs; 0: all
    // Counts from the end of a job without a ttl of its own. 0: forever.
    absl::Duration ttl = limits::kEndedJobsKeptFor;
    bool with_checkpoints = false;  // also delete jobs that have checkpoints
  };
  struct Options {
    JobRegistry* registry;  // both must outlive this
    UserOperations* users;
    Retention retention;
  };
  // The destructor finishes a deletion that is in progress.
  explicit EndedJobs(const Options& options) : options_(options) {}

  // Deletes surplus jobs, and old uploads of models. Blocks for the disk. If a job's folder cannot
  // be moved, continues with the other jobs. If the store fails, leaves the rest for the next
  // sweep.
  void Sweep();
  // Starts a sweep on the thread of this object. Returns at once.
  void SweepSoon() { repeater_.Soon(); }
  // Blocks until that thread is idle.
  void AwaitIdle() const { repeater_.AwaitIdle(); }

 private:
  struct Surplus {
    std::string id;         // job id
    bool with_checkpoints;  // its checkpoints may be deleted, too
  };
  std::vector<Surplus> FindSurplus() const;
  absl::Duration TtlOf(const v1::JobSpec& spec) const;
  bool HasCheckpointsOnDisk(const std::string& id) const;

  const Options options_;
  // Last, because it uses the other members.
  Repeater repeater_{absl::InfiniteDuration(), [this] { Sweep(); }};
};

}  // namespace muster
