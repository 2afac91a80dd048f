// Which waiting job starts now, and on which members.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace muster {

// What a job's shards take of one ps.
struct PsMemory {
  int64_t bytes = 0;
  int64_t bytes_per_worker = 0;  // and this for each of its workers

  int64_t With(int workers) const { return bytes + bytes_per_worker * workers; }
};

struct WaitingJob {
  uint64_t number = 0;  // submission order
  int32_t priority = 0;
  int workers_min = 1;
  int workers_max = 1;
  int ps = 1;                    // 0: workers own the shards
  PsMemory ps_memory = {};       // of each of them at most; zeros: not known yet
  bool settle_for_fewer = true;  // false: only with workers_max, more may be about to come
  bool reserves = false;         // it has waited for long: what comes free is kept for it
};

struct FreeMembers {
  struct Ps {
    std::string name;
    int jobs = 0;  // that it serves already
    // Left of its memory, and all of it.
    int64_t room_bytes = std::numeric_limits<int64_t>::max();
    int64_t capacity_bytes = std::numeric_limits<int64_t>::max();
  };
  std::vector<std::string> workers;  // that serve no job
  std::vector<Ps> ps;                // every one attached: a ps serves several jobs
  int workers_attached = 0;          // those that serve a job included
  uint64_t kept_for = 0;             // a job before all that wait, to which it all goes; 0: none
};

struct Placement {
  uint64_t number = 0;
  std::vector<std::string> workers;  // by rank
  std::vector<std::string> ps;       // in plan order
};

// Why a job was not placed.
enum class WaitCause : uint8_t {
  kWorkers,   // too few are free
  kPs,        // too few are attached
  kPsMemory,  // too few ps have room for it
  kGathers,   // it could start, and waits a moment for more workers
  kItsTurn,   // what is free is kept for a job before it
};

// A job that waits on, as the scheduler saw it when its turn came.
struct Wait {
  uint64_t number = 0;
  WaitCause cause = WaitCause::kWorkers;
  int position = 0;  // in the queue, from 1
  int queue_length = 0;
  int workers_needed = 0;
  int workers_free = 0;
  int workers_attached = 0;
  int ps_needed = 0;
  int ps_attached = 0;
  uint64_t kept_for = 0;  // the job before it, with kItsTurn
};

// "w-2" before "w-10".
bool NaturalLess(const std::string& a, const std::string& b);
// By fewest jobs, then name.
bool LighterPs(const FreeMembers::Ps& a, const FreeMembers::Ps& b);

// Gang scheduling: all of a job's members at once or none. Higher priority first, then submission
// order; a job that does not fit is passed over and later ones may start before it (backfill),
// unless it reserves and the fleet is large enough for it: small jobs that come one after the other
// would keep a large gang waiting for ever. Nor does any start where what is free is kept already.
// Workers in natural name order ("w-2" before "w-10"), ps by fewest jobs, then name, among those
// that have room for the job's shards; where too few have it, fewer workers need less. Pure.
std::vector<Placement> Schedule(absl::Span<const WaitingJob> waiting, FreeMembers free);
// The same, with what keeps the others.
struct Decision {
  std::vector<Placement> placements;
  std::vector<Wait> waits;  // in the order of the queue
};
Decision Decide(absl::Span<const WaitingJob> waiting, FreeMembers free);

// Whether the fleet is large enough for the job, whoever it serves now.
bool CouldFit(const WaitingJob& job, const FreeMembers& free);

// Whether it is memory of ps that a job waits for.
enum class MemoryFit {
  kFits,       // it is not, or that is not known
  kWaits,      // until other jobs end
  kTooLittle,  // and too few of the ps that are attached would have it even if they served no job
};
MemoryFit FitOf(const WaitingJob& job, absl::Span<const FreeMembers::Ps> ps);

}  // namespace muster
