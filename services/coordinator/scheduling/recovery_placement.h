// Who carries on a job that has lost members.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/types/span.h"
#include "services/coordinator/scheduling/scheduler.h"

namespace muster {

// A recovering job, as its last generation left it. "" stands for a member that is lost.
struct RecoveringJob {
  uint64_t number = 0;
  std::vector<std::string> workers;  // by rank
  int workers_min = 1;
  int workers_max = 1;
  bool settle_for_fewer = false;  // than there were
  // Those that are free, or were its own, but could not prepare the job when they last tried, and
  // whether they are to try where it comes to workers_min by nobody else. None of them has a rank.
  absl::btree_set<std::string> refused = {};
  bool tries_refused = true;
  std::vector<std::string> ps;  // in plan order
  bool keeps_ps = false;        // what they hold is carried on: nobody can take their place
  int ps_wanted = 0;            // then: so many, of which those that are free hold backups
  // Likewise: taken after all others, and given no backups.
  absl::btree_set<std::string> refused_ps = {};
  // What its shards take of a ps that is new to it, at most; zeros: not known.
  PsMemory ps_memory = {};
  // Of those that it has: each has its own share. Who is not here is taken for a new one, and for
  // large enough where it is kept.
  struct OwnPs {
    PsMemory memory;
    // Of its memory, what other jobs leave, and all of it.
    int64_t room_bytes = std::numeric_limits<int64_t>::max();
    int64_t capacity_bytes = std::numeric_limits<int64_t>::max();
  };
  absl::btree_map<std::string, OwnPs> own_ps = {};
};

// Who is left keeps his rank; who is free takes the rank of one who is lost, or a new one below the
// maximum. With fewer workers than before, if that is settled for, those left move up; only then
// those who have refused are taken, and no more of them than workers_min wants. The place of a ps
// goes to the one with the fewest jobs among those with room; where too few have it, fewer workers
// need less. Nothing where there are too few. Takes workers from `free`, which has none of the
// job's own; of its ps it has all. Pure.
std::optional<Placement> PlaceAgain(const RecoveringJob& job, FreeMembers& free);

// The job that what comes free is kept for, where these could not be placed: the first of them that
// the fleet is large enough for, whoever it serves now; 0: none. The workers that the others have
// left do not come free: they wait too. Pure.
uint64_t KeptFor(absl::Span<const RecoveringJob> unplaced, const FreeMembers& free);

// Of jobs that hold each other up, in the order in which they go: the last one is to give its
// workers up where one before it could go on with those, or with those of others between them as
// well. Whether what a job that runs has could help them as well is not asked: it may run for days.
// Pure.
bool LastGivesWay(absl::Span<const RecoveringJob> unplaced, const FreeMembers& free);

}  // namespace muster
