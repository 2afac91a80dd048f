// Decides which waiting job starts now and on which members, makes its plan and starts it.
#pragma once

#include <cstdint>
#include <memory>
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
#include "services/coordinator/scheduling/ps_memory_accounting.h"
#include "services/coordinator/scheduling/queue_placement.h"
#include "services/coordinator/scheduling/recovery_placement.h"

namespace muster {

// A recovering job goes before all waiting jobs. It keeps its remaining members and takes free
// ones. If those are too few, and the fleet is large enough for the job, freed members are reserved
// for it: no other job starts or grows, except recovering jobs.
//
// A PlanWorker makes the plans. Meanwhile the members count as taken. If a job changes meanwhile
// (cancelled, suspended), or loses one of its members, it does not start. The next Pass() plans it
// again.
//
// If a job's shards do not fit on the ps, it waits with the reason "WAITS_FOR_MEMORY". A QUEUED job
// waits with "MEMORY_TOO_SMALL" if too few ps are large enough. The job is planned again when they
// would fit.
//
// Thread-safe, except Pass().
class Scheduler {
 public:
  // `registry` and `fleet` outlive the scheduler.
  Scheduler(JobRegistry* registry, Fleet* fleet, PlanWorker::ModelBuilder build_model = BuildModel,
            PlanWorker::RestoreChooser choose = ChooseRestore);

  // Assigns free members to waiting jobs. Returns without waiting for their plans. Call it from one
  // thread, several times a second.
  void Pass();

  // Blocks until all placed jobs have been started or dropped.
  void AwaitIdle() const { worker_.AwaitIdle(); }

 private:
  void LearnWhatIsTaken();
  void TellWhatIsWaitedFor(JobRegistry::Transaction& transaction, const WaitingJob& job,
                           const std::vector<FreeMembers::Ps>& ps);
  std::vector<WaitingJob> WaitingJobs(const JobRegistry::Transaction& transaction,
                                      const PlanWorker::UnderWay& under_way);
  // Describes a job for placement at this resume point.
  RecoveringJob Describe(const JobRegistry::Transaction& transaction,
                         const JobRegistry::Entry& entry, const Job::ResumePoint& resume_point,
                         const absl::btree_map<std::string, AttachedMember>& members,
                         const FreeMembers& free) const;
  // Describes a recovering job that cannot continue yet, because its members have not stopped or it
  // is too early.
  RecoveringJob DescribeHalted(const JobRegistry::Transaction& transaction,
                               const JobRegistry::Entry& entry,
                               const absl::btree_map<std::string, AttachedMember>& members,
                               const FreeMembers& free) const;
  // Returns whether members may be reserved for a job that cannot continue yet, because what it
  // waits for probably ends soon.
  bool GoesOnSoon(const Job& job, absl::Time now) const;
  // Places the recovering jobs. Jobs that cannot continue yet get a message that says what they
  // wait for. Freed members are reserved for one of them.
  PlanWorker::Tasks Recoveries(JobRegistry::Transaction& transaction,
                               const PlanWorker::UnderWay& under_way,
                               const absl::btree_map<std::string, AttachedMember>& members,
                               FreeMembers& free);
  // Gives up members that have not reattached since the coordinator's restart, if free workers can
  // replace all missing workers of the job. Returns whether it gave up any.
  bool GiveUpMissing(JobRegistry::Transaction& transaction,
                     const absl::btree_map<std::string, AttachedMember>& members,
                     const FreeMembers& free) const;
  // Halts jobs for workers that have warmed up. Returns the warm-ups to begin.
  PlanWorker::Tasks LetFreeWorkersJoin(JobRegistry::Transaction& transaction,
                                       const std::vector<Placement>& placements,
                                       const absl::btree_map<std::string, AttachedMember>& members,
                                       FreeMembers free);
  // Halts jobs that have more workers than their minimum, for the first job that waits for workers.
  void LetWorkersYield(JobRegistry::Transaction& transaction,
                       const std::vector<WaitingJob>& waiting, const Decision& decision,
                       const FreeMembers& free);
  // Finds jobs that lack replicas for which a ps has room. `tasks` are those under way.
  PlanWorker::Tasks LookForReplicas(const JobRegistry::Transaction& transaction,
                                    const PlanWorker::Tasks& tasks,
                                    const absl::btree_map<std::string, AttachedMember>& members,
                                    FreeMembers free);
  void TellWhoIsMissing(JobRegistry::Entry& entry, const RecoveringJob& job);
  bool MayGiveUpWaiting(const Job& job, absl::Time now) const;
  void WaitForCommits(JobRegistry::Transaction& transaction);
  bool GiveUpWaiting(JobRegistry::Transaction& transaction, const WaitingJob& waiting,
                     const FreeMembers& free);
  // Adds the memory that a recovering job needs, as far as its plan tells.
  void AddNeeds(const JobRegistry::Transaction& transaction, const JobRegistry::Entry& entry,
                const absl::btree_map<std::string, AttachedMember>& members,
                RecoveringJob& job) const;
  // Workers that still serve a job that no longer counts on them, and since when.
  using LettingGo = absl::btree_map<std::string, absl::Time>;
  // Fills letting_go_; `before` is its previous value.
  FreeMembers FindFreeMembers(const JobRegistry::Transaction& transaction,
                              const PlanWorker::UnderWay& under_way,
                              const absl::btree_map<std::string, AttachedMember>& members,
                              const LettingGo& before);

  JobRegistry* const registry_;
  Fleet* const fleet_;
  // The time of the first Pass(); used by its thread only.
  absl::Time start_ = absl::InfiniteFuture();
  // The job for which freed members are reserved since the last Pass(), 0: none. Used by its
  // thread only.
  uint64_t reserved_for_ = 0;
  LettingGo letting_go_;
  PsMemoryAccounting memory_;
  // The last search for replicas of each running job.
  struct Search {
    uint32_t generation = 0;
    absl::Time time;
  };
  absl::flat_hash_map<uint64_t, Search> searches_;
  PlanWorker worker_;  // last, because its threads use the others
};

}  // namespace muster
