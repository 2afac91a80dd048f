// Chooses the members of a job that recovers, and the job for which free members are reserved.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/types/span.h"
#include "services/coordinator/scheduling/queue_placement.h"

namespace muster {

// A recovering job, as its last generation left it. A name "" stands for a lost member.
struct RecoveringJob {
  uint64_t number = 0;
  std::vector<std::string> workers;  // by rank
  int workers_min = 1;
  int workers_max = 1;
  int logical = 0;                // logical workers; 0: none, so every number is useful
  bool settle_for_fewer = false;  // may continue with fewer workers than it had
  // Free workers that failed to prepare the job the last time, or have not warmed up for it. If
  // `tries_excluded` and settle_for_fewer, the job takes as many of them as workers_min needs.
  absl::btree_set<std::string> excluded = {};
  // The job's own workers that lost their rank because they are excluded. It tries them like free
  // ones.
  absl::btree_set<std::string> own_excluded = {};
  bool tries_excluded = true;
  // Attached workers, free or not, that the job does not try, because they cannot compute with the
  // workers that it has: their device kind is another one.
  absl::btree_set<std::string> of_other_kind = {};
  std::vector<std::string> ps;  // in plan order
  // The shards continue in place, so no other ps can replace one of `ps`.
  bool keeps_ps = false;
  // The number of ps up to which a job with keeps_ps adds free ps, to hold replicas.
  int ps_wanted = 0;
  // Excluded ps. The job takes them after all others, and places no replicas on them.
  absl::btree_set<std::string> excluded_ps = {};
  // The most that its shards take of a ps that is new to it. Zeros if not known.
  PsMemory ps_memory = {};
  // A ps that the job has. `memory` is what the job's shards on this ps take. A ps that own_ps
  // lacks counts as new, or with keeps_ps as large enough.
  struct OwnPs {
    PsMemory memory;
    // The part of the ps's memory that other jobs leave free, and all of its memory.
    int64_t room_bytes = std::numeric_limits<int64_t>::max();
    int64_t capacity_bytes = std::numeric_limits<int64_t>::max();
  };
  absl::btree_map<std::string, OwnPs> own_ps = {};
};

// Places a recovering job. Returns nullopt if there are too few members.
//
// Workers: remaining workers keep their ranks. Free workers take the ranks of lost ones, then new
// ranks up to workers_max. Of the latter a job with logical workers takes only as many as lead to a
// useful number of workers (worker_numbers.h). If ranks stay empty, the job needs settle_for_fewer,
// and later workers move up. Only then it takes `excluded` workers, at most as many as workers_min
// needs.
//
// Ps: the ps with the fewest jobs among those with room replaces a lost one. If too few ps have
// room, the job takes fewer workers, because they need less memory.
//
// Removes the chosen workers from `free`, and adds the job to its ps, except those that it keeps.
// Requires: `free` has none of the job's own workers, and every ps that is attached. Pure.
std::optional<Placement> PlaceAgain(const RecoveringJob& job, FreeMembers& free);

// Returns the job for which free members are reserved, or 0 if none. This is the first of
// `unplaced` for which the fleet is large enough, including members that serve jobs now. The
// workers of the other unplaced jobs do not count: these jobs wait too and keep them. Pure.
uint64_t ReservedFor(absl::Span<const RecoveringJob> unplaced, const FreeMembers& free);

// Whether the last of `unplaced` yields its workers. The jobs are in their order of precedence, and
// may block each other. The last one yields if an earlier job could continue with its workers, or
// with these and those of the jobs between them. The workers of running jobs do not count, because
// such a job may run for days. Pure.
bool LastYields(absl::Span<const RecoveringJob> unplaced, const FreeMembers& free);

}  // namespace muster
