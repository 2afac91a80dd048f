// Which of the jobs that have ended are still kept, so that they do not grow for ever.
#pragma once

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/limits/limits.h"
#include "services/coordinator/operations/user_operations.h"
#include "services/coordinator/registry/job_registry.h"

namespace muster {

// Deletes ended jobs as a user would with DeleteJob: those of which there are too many, and each
// after its own ttl_after_finished, or the operator's. A job that has a checkpoint stays, unless
// the operator or its own file has said otherwise: what was trained is never deleted silently.
// Damaged jobs stay too: somebody may want to look at them. Thread-safe.
class EndedJobs {
 public:
  struct Retention {
    int64_t keep = limits::kEndedJobsKept;  // the newest; 0: all
    // Since a job's end, where its file says nothing; 0: for ever.
    absl::Duration ttl = limits::kEndedJobsKeptFor;
    bool with_checkpoints = false;  // jobs that have checkpoints go as well
  };
  struct Options {
    JobRegistry* registry;  // both outlive this
    UserOperations* users;
    Retention retention;
  };
  explicit EndedJobs(const Options& options);
  // Finishes the deletion that is under way.
  ~EndedJobs();

  // Deletes what is not kept any more. Waits for the disk. A job whose folder cannot be moved away
  // keeps no other; where the store fails the rest waits for the next time.
  void Sweep() ABSL_LOCKS_EXCLUDED(mu_);
  // The same on a thread of its own; returns at once.
  void SweepSoon() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until that thread has nothing to do.
  void AwaitIdle() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Surplus {
    std::string id;         // of a job
    bool with_checkpoints;  // those that it may have go as well
  };
  std::vector<Surplus> FindSurplus() const;
  absl::Duration TtlOf(const v1::JobSpec& spec) const;
  bool HasCheckpointsOnDisk(const std::string& id) const;
  bool stopping() const ABSL_LOCKS_EXCLUDED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  mutable absl::Mutex mu_;
  bool due_ ABSL_GUARDED_BY(mu_) = false;
  bool sweeping_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace muster
