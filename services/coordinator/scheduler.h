// Which waiting job starts now, and on which members.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace muster {

struct WaitingJob {
  uint64_t number = 0;  // submission order
  int32_t priority = 0;
  int workers_min = 1;
  int workers_max = 1;
  int ps = 1;                    // 0: workers own the shards
  bool settle_for_fewer = true;  // false: only with workers_max, more may be about to come
  bool reserves = false;         // it has waited for long: what comes free is kept for it
};

struct FreeMembers {
  struct Ps {
    std::string name;
    int jobs = 0;  // that it serves already
  };
  std::vector<std::string> workers;  // that serve no job
  std::vector<Ps> ps;                // every one attached: a ps serves several jobs
  int workers_attached = 0;          // those that serve a job included
};

struct Placement {
  uint64_t number = 0;
  std::vector<std::string> workers;  // by rank
  std::vector<std::string> ps;       // in plan order
};

// Gang scheduling: all of a job's members at once or none. Higher priority first, then submission
// order; a job that does not fit is passed over and later ones may start before it (backfill),
// unless it reserves and the fleet is large enough for it: small jobs that come one after the other
// would keep a large gang waiting for ever.
// Workers in natural name order ("w-2" before "w-10"), ps by fewest jobs, then name. Pure.
std::vector<Placement> Schedule(absl::Span<const WaitingJob> waiting, FreeMembers free);

}  // namespace muster
