// Decides which waiting job starts now and on which members, makes its plan and starts it.
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
#include "services/coordinator/job/job.h"
#include "services/coordinator/job/recovery/steps_to_train.h"
#include "services/coordinator/membership/fleet.h"
#include "services/coordinator/registry/job_registry.h"
#include "services/coordinator/scheduling/job_plan.h"
#include "services/coordinator/scheduling/ps_memory_accounting.h"
#include "services/coordinator/scheduling/queue_placement.h"
#include "services/coordinator/scheduling/recovery_placement.h"

namespace muster {

// A recovering job goes before all waiting jobs. It keeps its remaining members and takes free
// ones. If those are too few, and the fleet is large enough for the job, freed members are reserved
// for it: no other job starts or grows, except recovering jobs.
//
// Plans take time: a model is built, 100,000 chunks are placed, a checkpoint is read. So two
// threads of the scheduler make them, outside of the registry's transactions. One thread serves
// work that reads nothing and waits for no other job: recoveries in place, warm-ups, and searches
// for replicas. The other thread serves all other jobs. Meanwhile the members count as taken. If a
// job changes meanwhile (cancelled, suspended), or loses one of its members, it does not start. The
// next Pass() plans it again.
//
// A job starts from a checkpoint that was just read to its last byte. If that is damaged or cannot
// be read, the job uses the previous one, with an event ("CHECKPOINT_DAMAGED",
// "CHECKPOINT_UNREADABLE"). The job fails if no checkpoint is left, or if a user chose the
// checkpoint for the job.
//
// The memory that a job's shards need on each ps is known after planning. If they do not fit, the
// job keeps waiting with the reason "WAITS_FOR_MEMORY". A QUEUED job waits with "MEMORY_TOO_SMALL"
// if too few ps are large enough. The job is planned again when they would fit.
//
// Thread-safe, except Pass().
class Scheduler {
 public:
  using ModelBuilder = std::function<absl::StatusOr<v1::Graph>(const v1::ModelSpec&)>;
  using RestoreChooser = std::function<absl::StatusOr<RestoreChoice>(
      const v1::Job&, const JobOrigin&, const StateFolder&, const RestoreWatch&)>;
  // `registry` and `fleet` outlive the scheduler.
  Scheduler(JobRegistry* registry, Fleet* fleet, ModelBuilder build_model = BuildModel,
            RestoreChooser choose = ChooseRestore);
  // Finishes the plans that are being made; drops waiting ones.
  ~Scheduler();

  // Assigns free members to waiting jobs. Returns without waiting for their plans. Call it from one
  // thread, several times a second.
  void Pass() ABSL_LOCKS_EXCLUDED(mu_);

  // Blocks until all dispatched jobs have been started or dropped.
  void AwaitIdle() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A job with the members that were chosen for it.
  struct Start {
    uint64_t number = 0;
    uint64_t revision = 0;           // of the job; if it has changed, the start is dropped
    std::vector<v1::Hello> workers;  // by rank
    std::vector<v1::Hello> ps;       // in plan order
    // Set for a recovering job. No other job starts from a halted generation.
    std::optional<Job::ResumePoint> resume_point = std::nullopt;
    // Not 0: no job starts. The last `newcomers` of `workers` warm up the next generation.
    int newcomers = 0;
    // True: no job starts either. If the next generation on these members would have more replicas,
    // the job is halted for it.
    bool seeks_replicas = false;
    uint32_t generation = 0;  // the running one, for a warm-up or a search for replicas
  };
  using Starts = absl::btree_map<uint64_t, std::shared_ptr<const Start>>;  // by job number

  Starts starting() const ABSL_LOCKS_EXCLUDED(mu_);
  void LearnWhatIsTaken();
  // Returns the memory that all jobs, except one, take of every ps.
  BytesByPs SumOfTaken(const JobRegistry::Transaction& transaction, uint64_t except = 0) const;
  // Returns the memory that other jobs leave on the ps of a start.
  Prospect ProspectOf(const Start& start, const JobRegistry::Transaction& transaction) const;
  bool HasRoom(const Start& start, const JobRegistry::Transaction& transaction,
               const MemoryByPs& memory) const;
  bool HasRoomNow(const Start& start, const MemoryByPs& memory) const;
  void TellWhatIsWaitedFor(JobRegistry::Transaction& transaction, const WaitingJob& job,
                           const std::vector<FreeMembers::Ps>& ps);
  std::vector<WaitingJob> WaitingJobs(const JobRegistry::Transaction& transaction,
                                      const Starts& starting);
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
  std::vector<std::shared_ptr<const Start>> Recoveries(
      JobRegistry::Transaction& transaction, const Starts& starting,
      const absl::btree_map<std::string, AttachedMember>& members, FreeMembers& free);
  // Gives up members that have not reattached since the coordinator's restart, if free workers can
  // replace all missing workers of the job. Returns whether it gave up any.
  bool GiveUpMissing(JobRegistry::Transaction& transaction,
                     const absl::btree_map<std::string, AttachedMember>& members,
                     const FreeMembers& free) const;
  // Halts jobs for workers that have warmed up. Returns the warm-ups to begin.
  std::vector<std::shared_ptr<const Start>> LetFreeWorkersJoin(
      JobRegistry::Transaction& transaction, const std::vector<Placement>& placements,
      const absl::btree_map<std::string, AttachedMember>& members, FreeMembers free);
  // Halts jobs that have more workers than their minimum, for the first job that waits for workers.
  void LetWorkersYield(JobRegistry::Transaction& transaction,
                       const std::vector<WaitingJob>& waiting, const Decision& decision,
                       const FreeMembers& free);
  // Finds jobs that lack replicas for which a ps has room. `starts` are those under way.
  std::vector<std::shared_ptr<const Start>> LookForReplicas(
      const JobRegistry::Transaction& transaction,
      const std::vector<std::shared_ptr<const Start>>& starts,
      const absl::btree_map<std::string, AttachedMember>& members, FreeMembers free) const;
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
  FreeMembers FindFreeMembers(const JobRegistry::Transaction& transaction, const Starts& starting,
                              const absl::btree_map<std::string, AttachedMember>& members,
                              const LettingGo& before);

  enum Lane { kCarried, kOthers, kLanes };
  void Run(Lane lane) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the job of `start`, or null if it was changed or deleted meanwhile.
  JobRegistry::Entry* FindUnchanged(JobRegistry::Transaction& transaction,
                                    const Start& start) const;
  // Returns the job of `start`, or null if its generation no longer runs.
  static JobRegistry::Entry* FindRunning(JobRegistry::Transaction& transaction, const Start& start);
  void Carry(const Start& start);
  void BeginWarmUp(const Start& start);
  void SeekReplicas(const Start& start);
  absl::StatusOr<PlanRequest> Prepare(const Start& start, const v1::Job& record,
                                      const JobOrigin& origin,
                                      std::shared_ptr<const v1::Graph> graph);
  // Verifies the checkpoint that a plan starts from. Returns CANCELLED if the job now has another
  // checkpoint, if the plan would not be started, or if the scheduler stops. Otherwise fails as
  // ChooseRestore() does. Returns the data that it was trained on.
  absl::StatusOr<TrainedData> Verify(const Start& start, const v1::Job& record,
                                     const JobOrigin& origin);
  void TellPassedOver(uint64_t number, const RestoreChoice& choice);
  bool AllAttached(const Start& start) const;
  // Returns whether a member is gone for good. A member whose stream broke can reattach until its
  // lease ends.
  bool AnyGone(const Start& start) const;

  JobRegistry* const registry_;
  Fleet* const fleet_;
  const ModelBuilder build_model_;
  const RestoreChooser choose_;
  // The time of the first Pass(); used by its thread only.
  absl::Time start_ = absl::InfiniteFuture();
  // The job for which freed members are reserved since the last Pass(), 0: none. Used by its
  // thread only.
  uint64_t reserved_for_ = 0;
  LettingGo letting_go_;
  PsMemoryAccounting memory_;
  mutable absl::Mutex mu_;
  Starts starting_ ABSL_GUARDED_BY(mu_);
  std::array<std::deque<std::shared_ptr<const Start>>, kLanes> queues_
      ABSL_GUARDED_BY(mu_);  // the parts of starting_ that are still to do
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::array<std::thread, kLanes> threads_;  // last, because they use the others
};

}  // namespace muster
