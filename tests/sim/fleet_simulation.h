// A whole fleet and one job of it, in simulated time, with everything that can befall them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/sim/trajectory.h"

namespace muster {

// The coordinator is the real one with all its rooms, its store and its checkpoints; so are the
// shards, their gates, backups and links. Between two events everybody is at rest, so the same seed
// is the same run. Workers, the threads of a ps and the streams are written down anew as events
// (simulated_*.h).
struct FleetSimulation {
  uint64_t seed = 1;
  bool replicated = false;  // resources.ps_replication: 2
  bool judged = false;      // steps are clipped by the norm of the whole gradient
  bool grows = false;       // workers but one come while the job runs, whose steps take longer
  int faults = 0;
  std::string folder;  // made, and removed after a run without a violation

  struct Outcome {
    std::vector<std::string> violations;  // none: the job came to its end, and to the trajectory's
    std::vector<std::string> log;         // what befell whom, and the job's states
    absl::Duration longest_pause;         // between two steps, from when the last fault had healed
    int64_t recoveries = 0;
  };
  // An open trajectory learns, a closed one is the judge. What is checked: invariants I1, I2, I4,
  // I5, I7, I8, I9 and I10 of the design; I6, that nothing late has an effect, shows in the others;
  // and that no job goes back past what its ps hold.
  Outcome Run(Trajectory& trajectory) const;
};

}  // namespace muster
