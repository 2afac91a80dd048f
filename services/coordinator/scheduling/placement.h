// Decides which jobs get which members, and what the other jobs wait for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "services/coordinator/common/job_phase.h"
#include "services/coordinator/scheduling/queue_placement.h"
#include "services/coordinator/scheduling/recovery_placement.h"

namespace muster {

// A job that recovers, without a plan under way. Some of its members may not have stopped.
struct HaltedJob {
  RecoveringJob request;  // Place() sets settle_for_fewer
  // When all members had stopped. nullopt: the job cannot continue yet, but probably soon.
  std::optional<absl::Time> ready_since;
  bool recovers_to_stop = false;
  bool waits_too_long = false;  // its start_timeout is over
};

struct RunningJob {
  uint64_t number = 0;
  int32_t priority = 0;
  bool has_task = false;     // a plan for it is under way
  int workers_to_yield = 0;  // those that it can release for another job
  // The job can use more workers.
  struct Growth {
    RecoveringJob request;                // as if the job were halted now
    std::vector<std::string> warming_up;  // for the next generation
    bool is_warm = false;                 // all of them have warmed up
  };
  std::optional<Growth> growth;
  // Shards lack replicas.
  struct Replication {
    RecoveringJob request;             // as if the job were halted now
    std::vector<std::string> primary;  // the ps of each shard without a replica
  };
  std::optional<Replication> replication;
};

// A job that starts from a checkpoint that is still being committed. It gets no members.
struct CommittingJob {
  uint64_t number = 0;
  absl::Time since;             // when it began to wait for the commit
  bool waits_too_long = false;  // its start_timeout is over
};

// The jobs and the members at one moment. Workers of plans under way are not free; ps serve several
// jobs.
struct ClusterState {
  absl::Time now;
  // Every member has had time to attach since the coordinator's start.
  bool all_have_connected = true;
  // Every member has had time to come back with its jobs, and the coordinator hears its members.
  bool all_are_back = true;
  FreeMembers free;
  absl::btree_set<std::string> ps_in_plans;  // the ps of plans under way
  bool workers_let_go = false;  // some workers still serve a job that no longer counts on them
  uint64_t reserved_for = 0;    // as the last pass decided
  bool any_recovers = false;    // also a job that is not in `halted`
  bool any_yields = false;      // a recovering job is being stopped so that another can continue
  bool queue_is_cut = false;    // more jobs are queued than `queued` and `committing` have
  std::vector<CommittingJob> committing = {};
  // The queue without jobs that have a plan under way. Place() sets settle_for_fewer and
  // has_reservation.
  std::vector<WaitingJob> queued = {};
  std::vector<HaltedJob> halted = {};  // by precedence: priority, then number
  std::vector<RunningJob> running = {};
};

// Why a job waits, or the end of its wait. Repeated in each pass; the job notes a new reason only.
struct WaitNotice {
  uint64_t number = 0;
  JobPhase phase = JobPhase::kOther;  // kOther: the reason stays as it is
  std::string what;                   // completes "waits for"
  std::string message = "";           // if not empty, stands instead of "waits for ..."
  bool stops = false;                 // its start_timeout is over: stop it, as it lacks `what`
  uint64_t reserved_for = 0;  // with `stops`: the job for which members are reserved; 0: none
};

struct PlacementDecisions {
  std::vector<Placement> starts;   // of queued jobs
  std::vector<Placement> resumes;  // of recovering jobs
  // Warm-ups of the last `newcomers` workers.
  struct WarmUpPlacement {
    Placement placement;
    int newcomers = 0;
  };
  std::vector<WarmUpPlacement> warm_ups;
  std::vector<uint64_t> joins;              // jobs to halt for workers that have warmed up
  std::vector<Placement> replica_searches;  // jobs to halt if a plan finds more replicas
  struct WorkersYielded {
    uint64_t number = 0;
    int workers = 0;
    uint64_t beneficiary = 0;
  };
  std::vector<WorkersYielded> yields;  // jobs to halt for a queued job
  // A recovering job that yields all workers to another one, and what it lacks.
  struct JobYielded {
    uint64_t number = 0;
    std::string what;  // completes "waits for"
  };
  std::optional<JobYielded> yield_all;
  std::vector<WaitNotice> notices;
  std::vector<Wait> waits;    // of queued jobs, in the order of the queue
  uint64_t reserved_for = 0;  // the recovering job for which freed members are reserved; 0: none
};

// How long recovering jobs may block each other, because each holds workers that another one needs.
// New workers may solve that in this time. After it one of the jobs yields: it stops, so that
// another can continue.
inline constexpr absl::Duration kYieldsAfter = absl::Minutes(1);
// A job that could have more workers than are free waits this long for workers that are still
// attaching.
inline constexpr absl::Duration kGatherTime = absl::Seconds(2);
// Freed members are reserved for a job that has not fitted for this long. With a shorter time,
// reserved members stay idle for longer. With a longer one, more small jobs pass it.
inline constexpr absl::Duration kReserveAfter = absl::Minutes(1);
// How long a commit, or the records of a recovering job, may take. They take moments, so after this
// time the disk probably hangs.
inline constexpr absl::Duration kFilesTakeMax = absl::Minutes(1);

// Places all jobs. Pure.
//
// A recovering job goes before all waiting jobs. It keeps its remaining members and takes free
// ones. If those are too few, and the fleet is large enough for the job, freed members are reserved
// for it: no other job starts or grows, except recovering jobs.
//
// Queued jobs start after them, see Decide(). The first one that still waits may take workers from
// running jobs, on these conditions:
// - It lacks only workers, and has waited for kReserveAfter. No job recovers.
// - The others run, with its priority or a lower one, and have more workers than their minimum.
// If every queued job has started, running jobs grow by free workers. Jobs that lack replicas look
// for a ps last.
PlacementDecisions Place(ClusterState state);

// A job and its members that have not come back since the coordinator's restart.
struct MissingMembers {
  uint64_t number = 0;
  int workers = 0;                        // how many of them are workers
  absl::btree_set<std::string> excluded;  // workers that cannot replace them
};
// Returns the jobs for which free workers can replace all missing ones. Pure.
std::vector<uint64_t> ReplaceableJobs(absl::Span<const MissingMembers> jobs,
                                      const FreeMembers& free);

}  // namespace muster
