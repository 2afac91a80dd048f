// Places jobs on members: runs the decisions of scheduling/ on the jobs and members of now.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "lib/graph/zoo/zoo.h"
#include "services/coordinator/checkpoints/restore_choice.h"
#include "services/coordinator/job/job.h"
#include "services/coordinator/membership/fleet.h"
#include "services/coordinator/planning/plan_worker.h"
#include "services/coordinator/registry/job_registry.h"
#include "services/coordinator/scheduling/placement.h"
#include "services/coordinator/scheduling/ps_memory_accounting.h"

namespace muster {

// A pass describes the jobs and the members, calls Place(), and applies its decisions in one
// transaction. A PlanWorker makes the plans. Meanwhile the members count as taken. If a job changes
// meanwhile (cancelled, suspended), or loses one of its members, it does not start. The next pass
// places it again.
//
// A pass looks at the first kConsideredMax jobs of the queue, so that its cost does not grow with
// the queue. The others wait for their turn.
//
// If a job's shards do not fit on the ps, it waits with the reason "WAITS_FOR_MEMORY". A QUEUED job
// waits with "MEMORY_TOO_SMALL" if too few ps are large enough. The job is planned again when they
// would fit, and in any case after a while (PsMemoryAccounting).
//
// Thread-safe, except Pass().
class Scheduler {
 public:
  static constexpr int kConsideredMax = 1000;

  // `registry` and `fleet` outlive the scheduler.
  Scheduler(JobRegistry* registry, Fleet* fleet, PlanWorker::ModelBuilder build_model = BuildModel,
            PlanWorker::RestoreChooser choose = ChooseRestore);

  // Gives up members that do not come back after a restart, assigns free members to waiting jobs,
  // and halts or stops jobs for others. Returns without waiting for plans. Call it from one thread,
  // several times a second.
  void Pass();

  // Blocks until all placed jobs have been started or dropped.
  void AwaitIdle() const { worker_.AwaitIdle(); }

 private:
  using Members = absl::btree_map<std::string, AttachedMember>;
  using Transaction = JobRegistry::Transaction;
  // The jobs and members as one pass reads them.
  struct View {
    Transaction& transaction;
    absl::Time now;
    PlanWorker::UnderWay under_way;
    Members members;
    FreeMembers free;
    bool workers_let_go = false;  // some workers still serve a job that no longer counts on them
  };

  void LearnWhatIsTaken();
  bool HasWork(const Transaction& transaction) const;
  FreeMembers FindFreeMembers(View& view);
  // Gives up members that have not reattached since the coordinator's restart, if free workers can
  // replace all missing workers of the job.
  void GiveUpMissing(View& view) const;

  // Describe the jobs for Place().
  ClusterState Describe(View& view);
  WaitingJob DescribeQueued(const View& view, const JobRegistry::Entry& entry) const;
  // Returns nullopt if the job cannot continue soon.
  std::optional<HaltedJob> DescribeHalted(const View& view, const JobRegistry::Entry& entry) const;
  RunningJob DescribeRunning(const View& view, const JobRegistry::Entry& entry) const;
  RecoveringJob DescribeAt(const View& view, const JobRegistry::Entry& entry,
                           const Job::ResumePoint& resume_point) const;
  // Adds the memory that a recovering job needs, as far as its plan tells.
  void AddNeeds(const View& view, RecoveringJob& job) const;
  // Returns whether members may be reserved for a job that cannot continue yet, because what it
  // waits for probably ends soon.
  bool GoesOnSoon(const Job& job, absl::Time now) const;
  bool AllAreBack(absl::Time now) const;

  // Apply decisions. The latter returns the plans to make.
  void Tell(const View& view, const WaitNotice& notice) const;
  PlanWorker::Tasks Apply(const View& view, const PlacementDecisions& decisions);

  JobRegistry* const registry_;
  Fleet* const fleet_;
  // Used by the thread of Pass() only, except for memory_ and worker_, which are thread-safe.
  absl::Time start_ = absl::InfiniteFuture();  // the time of the first pass
  uint64_t reserved_for_ = 0;                  // as the last pass decided
  // Workers that still serve a job that no longer counts on them, and since when.
  absl::btree_map<std::string, absl::Time> letting_go_;
  // The last search for replicas of each running job.
  struct Search {
    uint32_t generation = 0;
    absl::Duration interval;
    absl::Time again;
  };
  absl::flat_hash_map<uint64_t, Search> searches_;
  PsMemoryAccounting memory_;
  PlanWorker worker_;  // last, because its threads use the others
};

}  // namespace muster
