// Kills members of a local cluster while a job trains there, or changes its number of workers, and
// watches the job recover.
#pragma once

#include <signal.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/chaos/recovery_tracker.h"
#include "cli/framework/coordinator_client.h"
#include "cli/framework/interrupt.h"
#include "cli/local/local_cluster.h"

namespace muster::cli {

struct ChaosOptions {
  uint64_t seed = 1;  // decides which members are struck, and when
  // kScale suspends the job at a checkpoint and resumes it with another number of workers, between
  // the `min` and the `max` that it has when the run begins. It never strikes a job with one
  // number.
  std::vector<ChaosRole> roles = {ChaosRole::kPs, ChaosRole::kWorker, ChaosRole::kCoordinator};
  absl::Duration every = absl::Seconds(10);    // mean gap from a recovery to the next strike
  absl::Duration duration = absl::Minutes(5);  // strikes begin within this time of the first step
  int strikes_max = std::numeric_limits<int>::max();
  int signal = SIGKILL;                        // or SIGSTOP, followed by SIGCONT after `stop_for`
  absl::Duration stop_for = absl::Seconds(8);  // longer than the lease, 5 s
  absl::Duration away = absl::Milliseconds(300);  // from killing a member to starting it again
  absl::Duration deadline = absl::Seconds(60);    // the longest a recovery may take
  // Whether to strike also during a recovery. `every` is then the mean gap from the return of a
  // member to the next strike.
  bool overlaps = false;
  bool awaits_end = true;          // false: returns after the last recovery, before the job ends
  Interrupt* interrupt = nullptr;  // may be null
  std::function<void(const std::string&)> say;  // called with each progress line; may be empty
};

struct ChaosReport {
  v1::Job job;  // the last state that the watch received
  std::vector<Strike> strikes;
  std::map<std::string, int> recoveries;  // see RecoveryTracker::recoveries()
  int64_t steps_again = 0;
  // "worker-0 ended with exit code 70": members that ended without a strike and were restarted.
  std::vector<std::string> other_ends;
  std::string fault;  // why the run stopped before the job's end, or ""
};

// Waits until the job runs, then strikes it or members that serve it, one after the other. Returns
// when the job has ended, or when a recovery took longer than `deadline`. All members run on
// return.
//
// Returns CANCELLED on a signal, or an error if a member cannot be restarted or the job cannot be
// watched.
// Requires: `client` talks to `cluster`. Members with Lifetime::kWithParent that are restarted die
// with the calling thread.
absl::StatusOr<ChaosReport> RunChaos(const std::string& job, LocalCluster& cluster,
                                     CoordinatorClient& client, const ChaosOptions& options);

}  // namespace muster::cli
