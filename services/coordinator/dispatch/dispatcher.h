// Decides which waiting job starts now and on which members, draws up its plan and starts it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/graph/zoo/zoo.h"
#include "services/coordinator/checkpoints/restore_choice.h"
#include "services/coordinator/dispatch/job_plan.h"
#include "services/coordinator/job/job.h"
#include "services/coordinator/membership/fleet.h"
#include "services/coordinator/registry/job_registry.h"
#include "services/coordinator/scheduling/ps_memory_book.h"
#include "services/coordinator/scheduling/recovery_placement.h"
#include "services/coordinator/scheduling/scheduler.h"

namespace muster {

// A job that has lost members goes before all that wait: it has what is left of its own, and takes
// from the others what is free. Where that is too little, and the fleet is large enough for it,
// what comes free is kept for it: nobody else starts or grows, but another that recovers.
//
// Thread-safe. Plans take their time (a model is built, 100,000 chunks are placed, a checkpoint is
// read), so two threads of the dispatcher's own make them, outside of the registry's turns: one for
// jobs that recover with the shards they have, or would for the sake of backups, and for
// rehearsals, which read nothing and wait for nobody else, one for all others. Meanwhile their
// members count as taken. A job that was changed in between (cancelled, suspended) or lost one of
// its members is not started: it waits for the next Dispatch(), as if nothing had been planned.
//
// A job starts from a checkpoint that was read to its last byte just before. One that is damaged or
// cannot be read is passed over for the one before, which is an event of the job
// ("CHECKPOINT_DAMAGED", "CHECKPOINT_UNREADABLE"); where none is left, or somebody chose it for the
// job, the job has failed.
//
// What a job's shards take of its ps is known once it was planned. If they do not fit the job stays
// QUEUED, says so (reason "WAITS_FOR_MEMORY", or "MEMORY_TOO_SMALL" where no ps would ever do) and
// is planned again when they would.
class Dispatcher {
 public:
  using ModelBuilder = std::function<absl::StatusOr<v1::Graph>(const v1::ModelSpec&)>;
  using RestoreChooser = std::function<absl::StatusOr<RestoreChoice>(
      const v1::Job&, const JobOrigin&, const StateFolder&, const RestoreWatch&)>;
  // Both outlive the dispatcher.
  Dispatcher(JobRegistry* registry, Fleet* fleet, ModelBuilder build_model = BuildModel,
             RestoreChooser choose = ChooseRestore);
  // Finishes the plan that is being made; drops those that wait.
  ~Dispatcher();

  // Gives waiting jobs the members that are free. Call it from one thread, several times a second.
  void Dispatch() ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until what was dispatched has been started or dropped.
  void AwaitIdle() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A job that has been given members.
  struct Start {
    uint64_t number = 0;
    uint64_t revision = 0;           // of the job: it has not been changed since
    std::vector<v1::Hello> workers;  // by rank
    std::vector<v1::Hello> ps;       // in plan order
    // Of one that recovers; nothing else starts from a halted generation.
    std::optional<Job::Resumption> resumption = std::nullopt;
    // Not 0: nothing is started. The last ones of `workers`, so many, rehearse the next generation.
    int newcomers = 0;
    // Nothing is started either: the job is halted where its next generation, which these would
    // carry on, would have backups that it has not.
    bool seeks_backups = false;
    uint32_t generation = 0;  // that runs meanwhile
  };
  using Starts = absl::btree_map<uint64_t, std::shared_ptr<const Start>>;  // by job number

  Starts starting() const ABSL_LOCKS_EXCLUDED(mu_);
  void LearnWhatIsTaken();
  // Of every ps, by all jobs but one.
  BytesByPs SumOfTaken(const JobRegistry::Turn& turn, uint64_t except = 0) const;
  // What other jobs leave of the ps of a start.
  Prospect ProspectOf(const Start& start, const JobRegistry::Turn& turn) const;
  bool HasRoom(const Start& start, const JobRegistry::Turn& turn, const MemoryByPs& memory) const;
  bool HasRoomNow(const Start& start, const MemoryByPs& memory) const;
  void TellWhatIsWaitedFor(JobRegistry::Turn& turn, const WaitingJob& job,
                           const std::vector<FreeMembers::Ps>& ps);
  std::vector<WaitingJob> WaitingJobs(const JobRegistry::Turn& turn, const Starts& starting);
  // As a job that goes on there would be placed.
  RecoveringJob Describe(const JobRegistry::Turn& turn, const JobRegistry::Entry& entry,
                         const Job::Resumption& resumption,
                         const absl::btree_map<std::string, AttachedMember>& members,
                         const FreeMembers& free) const;
  // The same of one that recovers and cannot go on yet: its members have not stopped, or it is too
  // early.
  RecoveringJob DescribeHalted(const JobRegistry::Turn& turn, const JobRegistry::Entry& entry,
                               const absl::btree_map<std::string, AttachedMember>& members,
                               const FreeMembers& free) const;
  // Of such a job: what is free may be set aside for it, since what it waits for comes to an end.
  bool GoesOnSoon(const Job& job, absl::Time now) const;
  // Places the jobs that recover; those that cannot go on yet are told what they wait for, and what
  // is free is kept for one of them.
  std::vector<std::shared_ptr<const Start>> Recoveries(
      JobRegistry::Turn& turn, const Starts& starting,
      const absl::btree_map<std::string, AttachedMember>& members, FreeMembers& free);
  // Gives up members that have not come back since the coordinator's restart, where free workers
  // can take the places of all that are workers. Returns whether it did.
  bool GiveUpMissing(JobRegistry::Turn& turn,
                     const absl::btree_map<std::string, AttachedMember>& members,
                     const FreeMembers& free) const;
  // Halts jobs for those who have rehearsed; the rehearsals that are to begin.
  std::vector<std::shared_ptr<const Start>> LetFreeWorkersJoin(
      JobRegistry::Turn& turn, const std::vector<Placement>& placements,
      const absl::btree_map<std::string, AttachedMember>& members, FreeMembers free);
  // Halts jobs that have more workers than their minimum, for the first job that waits for workers.
  void LetWorkersYield(JobRegistry::Turn& turn, const std::vector<WaitingJob>& waiting,
                       const Decision& decision, const FreeMembers& free);
  // For jobs whose shards have no backup where a ps could have it. `starts`: those under way.
  std::vector<std::shared_ptr<const Start>> LookForBackups(
      const JobRegistry::Turn& turn, const std::vector<std::shared_ptr<const Start>>& starts,
      const absl::btree_map<std::string, AttachedMember>& members, FreeMembers free) const;
  void TellWhoIsMissing(JobRegistry::Entry& entry, const RecoveringJob& job);
  bool MayGiveUpWaiting(const Job& job, absl::Time now) const;
  void WaitForCommits(JobRegistry::Turn& turn);
  bool GiveUpWaiting(JobRegistry::Turn& turn, const WaitingJob& waiting, const FreeMembers& free);
  // What is known of the needs of a job that recovers, from its plan.
  void AddNeeds(const JobRegistry::Turn& turn, const JobRegistry::Entry& entry,
                const absl::btree_map<std::string, AttachedMember>& members,
                RecoveringJob& job) const;
  // Workers that serve a job which does not count on them any more, and since when.
  using LettingGo = absl::btree_map<std::string, absl::Time>;
  // Fills letting_go_, of which `before` is what it was.
  FreeMembers FindFreeMembers(const JobRegistry::Turn& turn, const Starts& starting,
                              const absl::btree_map<std::string, AttachedMember>& members,
                              const LettingGo& before);

  enum Lane { kCarried, kOthers, kLanes };
  void Run(Lane lane) ABSL_LOCKS_EXCLUDED(mu_);
  // Null: the job was changed or deleted meanwhile.
  JobRegistry::Entry* FindUnchanged(JobRegistry::Turn& turn, const Start& start) const;
  // Null: its generation does not run any more.
  static JobRegistry::Entry* FindRunning(JobRegistry::Turn& turn, const Start& start);
  void Carry(const Start& start);
  void Rehearse(const Start& start);
  void SeekBackups(const Start& start);
  absl::StatusOr<PlanRequest> Prepare(const Start& start, const v1::Job& record,
                                      const JobOrigin& origin,
                                      std::shared_ptr<const v1::Graph> graph);
  // What a plan starts from. CANCELLED: it was passed over and the job has another now, or the plan
  // would not be started, or the dispatcher stops; else as ChooseRestore().
  absl::Status Verify(const Start& start, const v1::Job& record, const JobOrigin& origin);
  void TellPassedOver(uint64_t number, const RestoreChoice& choice);
  bool AllAttached(const Start& start) const;
  // For good: one whose stream broke has its lease to come back.
  bool AnyGone(const Start& start) const;

  JobRegistry* const registry_;
  Fleet* const fleet_;
  const ModelBuilder build_model_;
  const RestoreChooser choose_;
  absl::Time start_ = absl::InfiniteFuture();  // of the first Dispatch(); its thread's
  // Of the last one, likewise: the job that what comes free is kept for, 0: none.
  uint64_t kept_for_ = 0;
  LettingGo letting_go_;
  PsMemoryBook memory_;
  mutable absl::Mutex mu_;
  Starts starting_ ABSL_GUARDED_BY(mu_);
  std::array<std::deque<std::shared_ptr<const Start>>, kLanes> queues_
      ABSL_GUARDED_BY(mu_);  // of starting_, to be done
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::array<std::thread, kLanes> threads_;  // last: they use the others
};

}  // namespace muster
