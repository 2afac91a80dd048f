// Kills members of a local cluster while a job trains there, and watches how it gets over it.
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
  uint64_t seed = 1;  // of who is struck and when
  std::vector<ChaosRole> roles = {ChaosRole::kPs, ChaosRole::kWorker, ChaosRole::kCoordinator};
  absl::Duration every = absl::Seconds(10);    // on average, since the job has recovered
  absl::Duration duration = absl::Minutes(5);  // from the first step on; then it may end in peace
  int strikes_max = std::numeric_limits<int>::max();
  int signal = SIGKILL;                           // or SIGSTOP, with SIGCONT after `stop_for`
  absl::Duration stop_for = absl::Seconds(8);     // the lease is 5 s
  absl::Duration away = absl::Milliseconds(300);  // from a death to the start of the next process
  absl::Duration deadline = absl::Seconds(60);    // of a recovery
  bool overlaps = false;   // strikes while the job recovers, too: `every` is from one to the next
  bool awaits_end = true;  // of the job; else returns when it has recovered
  Interrupt* interrupt = nullptr;               // may be null
  std::function<void(const std::string&)> say;  // a line of what happens; may be empty
};

struct ChaosReport {
  v1::Job job;  // as it was last seen
  std::vector<Strike> strikes;
  std::map<std::string, int> recoveries;  // RecoveryTracker
  int64_t steps_again = 0;
  // "worker-0 ended with exit code 70": of members that were not struck, and were started again.
  std::vector<std::string> other_ends;
  std::string fault;  // why it was given up before the job's end; "": it was not
};

// Waits until the job runs, then strikes one member after the other that serves it. Returns when
// the job has ended, or is given up since a recovery took longer than the deadline; all members run
// again then. CANCELLED on a signal; an error when a member cannot be started again or the job
// cannot be watched. `client` is of `cluster`, whose members live as long as this thread.
absl::StatusOr<ChaosReport> RunChaos(const std::string& job, LocalCluster& cluster,
                                     CoordinatorClient& client, const ChaosOptions& options);

}  // namespace muster::cli
