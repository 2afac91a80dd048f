// Simulates a whole fleet that trains one job, in simulated time, and injects faults.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/sim/trajectory.h"

namespace muster {

// The coordinator is the production one with its store and checkpoints. The shards, their gates,
// their replicas and ShardLoop are the production ones too, on an in-process transport. Workers,
// the threads of a ps and the streams are modelled as events (simulated_*.h). Every process is idle
// between two events, so a seed always gives the same run.
struct FleetSimulation {
  uint64_t seed = 1;
  bool replicated = false;  // resources.ps_replication: 2
  bool judged = false;      // steps are clipped by the norm of the whole gradient
  // resources.workers.logical: the job has up to four workers of four, instead of two of three.
  int logical = 0;
  bool grows = false;  // all workers but one join while the job runs; all steps take longer
  int faults = 0;      // at most so many; those that the job's end overtakes do not strike
  std::string folder;  // emptied before the run; removed after a run without a violation

  struct Outcome {
    std::vector<std::string> violations;  // empty: the job ended with the trajectory's values
    std::vector<std::string> log;         // the faults, and the job's states
    absl::Duration longest_pause;         // between two steps, counted after the last fault healed
    int64_t faults = 0;                   // that struck
    int64_t recoveries = 0;
    std::set<int> workers;  // the numbers of workers that the job has started with
  };
  // Runs the fleet. An open trajectory records the values; a closed one checks them. The run checks
  // invariants I1, I2, I4, I5, I7, I8, I9 and I10 of the design. I6 (late messages have no effect)
  // is covered by the others. It also checks that a recovering job does not go back past the oldest
  // version that its ps hold, except if it recovers because a member leaves. No ps is asked for a
  // shard that it does not hold: neither to continue it nor to save it.
  Outcome Run(Trajectory& trajectory) const;
};

}  // namespace muster
