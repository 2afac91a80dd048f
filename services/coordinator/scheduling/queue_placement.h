// Decides which waiting jobs start now, and on which members.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace muster {

// The memory that a job's shards take on one ps, in bytes.
struct PsMemory {
  int64_t bytes = 0;
  int64_t bytes_per_worker = 0;  // in addition, for each of the job's workers

  int64_t With(int workers) const { return bytes + bytes_per_worker * workers; }
};

struct WaitingJob {
  uint64_t number = 0;  // submission order
  int32_t priority = 0;
  int workers_min = 1;
  int workers_max = 1;  // a useful number, or workers_min
  int logical = 0;      // logical workers; 0: none, so every number is useful
  // Workers that the job takes first if they are free. With logical workers these are its former
  // ones, because they have the device kind with which it trained.
  absl::btree_set<std::string> preferred = {};
  // Attached workers, free or not, that cannot compute the job (CanShareModel()).
  absl::btree_set<std::string> unsuitable = {};
  int ps = 1;                    // 0: workers own the shards
  PsMemory ps_memory = {};       // the most that it needs on any ps; zeros: not known yet
  bool settle_for_fewer = true;  // false: needs workers_max, because more workers may soon attach
  bool has_reservation = false;  // it has waited long: free members are reserved for it
  // For Place() only:
  absl::Time since = absl::InfinitePast();  // when it entered the queue
  bool waits_too_long = false;              // its start_timeout is over
  bool is_told_of_more = false;             // users were told that it waits for more than members
};

struct FreeMembers {
  struct Ps {
    std::string name;
    int jobs = 0;  // the number of jobs that it serves
    // The free part of the ps's memory, and all of its memory.
    int64_t room_bytes = std::numeric_limits<int64_t>::max();
    int64_t capacity_bytes = std::numeric_limits<int64_t>::max();
  };
  std::vector<std::string> workers;  // those that serve no job
  std::vector<Ps> ps;                // all attached ps: each can serve several jobs
  int workers_attached = 0;          // including those that serve a job
  uint64_t reserved_for = 0;  // a job ahead of the queue that reserves all free members; 0: none
};

struct Placement {
  uint64_t number = 0;
  std::vector<std::string> workers;  // by rank
  std::vector<std::string> ps;       // in plan order
};

// Why a job was not placed.
enum class WaitCause : uint8_t {
  kWorkers,   // too few workers are free
  kPs,        // too few ps are attached
  kPsMemory,  // too few ps have room for its shards
  kGathers,   // it can start, but waits a moment for more workers
  kItsTurn,   // free members are reserved for a job ahead of it
  kIsBehind,  // the scheduler does not look at it yet: too many jobs are ahead of it
};

// A job that stays in the queue, with the fleet as the scheduler saw it at the job's turn.
struct Wait {
  uint64_t number = 0;
  WaitCause cause = WaitCause::kWorkers;
  int position = 0;  // in the queue, from 1
  int queue_length = 0;
  int workers_needed = 0;
  int workers_free = 0;        // without unsuitable ones
  int workers_attached = 0;    // without unsuitable ones
  int workers_unsuitable = 0;  // attached
  int ps_needed = 0;
  int ps_attached = 0;
  uint64_t reserved_for = 0;  // with kItsTurn: the job that has the reservation
};

// Orders names by length, then by bytes: "w-2" before "w-10".
bool NaturalLess(const std::string& a, const std::string& b);
// Orders ps by the number of their jobs, then by name.
bool LighterPs(const FreeMembers::Ps& a, const FreeMembers::Ps& b);

// The jobs that start now, and why each other job waits.
struct Decision {
  std::vector<Placement> placements;
  std::vector<Wait> waits;  // in the order of the queue
};

// Chooses the jobs that start now, and their members. Gang scheduling: a job gets all of its
// members at once or none. Pure.
//
// Order: higher priority first, then submission order. Later jobs may start before a job that does
// not fit (backfill). A job that `has_reservation` stops backfill if the fleet is large enough for
// it. Otherwise a stream of small jobs would starve a large one. Workers that are unsuitable for it
// stay available to later jobs. No job starts while free.reserved_for is set.
//
// Members: suitable workers in natural name order ("w-2" before "w-10"), preferred ones first. Ps
// with the fewest jobs first, then by name, among those with room for the job's shards. If too few
// ps have room, the job takes fewer workers, because they need less memory. A job with logical
// workers takes a useful number of workers (worker_numbers.h), or workers_min.
Decision Decide(absl::Span<const WaitingJob> waiting, FreeMembers free);

// Returns how many of these workers are suitable for the job.
int CountSuitable(const WaitingJob& job, absl::Span<const std::string> workers);
// Returns the number of attached workers that are suitable for the job.
int SuitableAttached(const WaitingJob& job, const FreeMembers& free);

// Whether the fleet is large enough for the job, including members that serve other jobs.
bool CouldFit(const WaitingJob& job, const FreeMembers& free);

// Whether a job waits for memory of ps.
enum class MemoryFit {
  kFits,       // no: enough ps have room, too few ps are attached, or its need is not known
  kWaits,      // yes, until other jobs end
  kTooLittle,  // yes, and too few attached ps have enough even without any other job
};
MemoryFit FitOf(const WaitingJob& job, absl::Span<const FreeMembers::Ps> ps);

}  // namespace muster
