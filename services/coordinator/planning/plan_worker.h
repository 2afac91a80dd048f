// Makes the plans of jobs that have been given members, on threads of its own.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "lib/graph/zoo/zoo.h"
#include "services/coordinator/checkpoints/restore_choice.h"
#include "services/coordinator/job/job.h"
#include "services/coordinator/job/recovery/steps_to_train.h"
#include "services/coordinator/membership/fleet.h"
#include "services/coordinator/registry/job_registry.h"
#include "services/coordinator/scheduling/job_plan.h"
#include "services/coordinator/scheduling/ps_memory_accounting.h"

namespace muster {

// Starts a queued job.
struct StartFresh {
  uint64_t revision = 0;  // of the job
};
// Starts the next generation of a recovering job.
struct Resume {
  uint64_t revision = 0;  // of the job
  Job::ResumePoint resume_point;
};
// Begins a warm-up of the last `newcomers` workers for the next generation of a running job.
struct WarmUpNewcomers {
  uint32_t generation = 0;  // the running one
  int newcomers = 0;
};
// Halts a running job, if its next generation on these members would have more replicas.
struct AddReplicas {
  uint32_t generation = 0;  // the running one
};

// A plan to make for one job. The worker drops a task if the job has changed since the task was
// made, or if the job has lost one of these members. A later task then serves the job.
struct PlanTask {
  uint64_t number = 0;             // of the job
  std::vector<v1::Hello> workers;  // by rank
  std::vector<v1::Hello> ps;       // in plan order; empty for a warm-up
  std::variant<StartFresh, Resume, WarmUpNewcomers, AddReplicas> work;
};

// Returns the bytes that active jobs, except one, take of each ps.
BytesByPs TakenOfPs(const JobRegistry::Transaction& transaction, const PsMemoryAccounting& memory,
                    uint64_t except = 0);

// Plans take time: a model is built, 100,000 chunks are placed, a checkpoint is read. So two
// threads make them, outside of the registry's transactions. One thread serves tasks that read
// nothing and wait for no other job: recoveries in place, warm-ups, and additions of replicas. The
// other thread serves all other tasks.
//
// A job starts from a checkpoint that was just read to its last byte. If that is damaged or cannot
// be read, the job uses the previous one, with an event ("CHECKPOINT_DAMAGED",
// "CHECKPOINT_UNREADABLE"). The job fails if no checkpoint is left, or if a user chose the
// checkpoint for the job.
//
// The memory that a job's shards need on each ps is known after planning. If they do not fit, the
// job does not start, and `memory` learns its need.
//
// Thread-safe.
class PlanWorker {
 public:
  using ModelBuilder = std::function<absl::StatusOr<v1::Graph>(const v1::ModelSpec&)>;
  using RestoreChooser = std::function<absl::StatusOr<RestoreChoice>(
      const v1::Job&, const JobOrigin&, const StateFolder&, const RestoreWatch&)>;
  using Tasks = std::vector<std::shared_ptr<const PlanTask>>;

  // `registry`, `fleet` and `memory` outlive the worker.
  PlanWorker(JobRegistry* registry, Fleet* fleet, PsMemoryAccounting* memory,
             ModelBuilder build_model, RestoreChooser choose);
  // Finishes the plans that are being made, and drops waiting ones.
  ~PlanWorker();

  // Returns without waiting for the plans. Requires: no job of `tasks` has a task under way.
  void Add(const Tasks& tasks) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the tasks that wait or are being done, by job number.
  using UnderWay = absl::btree_map<uint64_t, std::shared_ptr<const PlanTask>>;
  UnderWay under_way() const ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until all tasks are done or dropped.
  void AwaitIdle() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum Lane { kReadsNothing, kOthers, kLanes };
  static Lane LaneOf(const PlanTask& task);
  void Run(Lane lane) ABSL_LOCKS_EXCLUDED(mu_);
  void Do(const PlanTask& task);
  // `resume_point` is null for a queued job.
  void Start(const PlanTask& task, const Job::ResumePoint* resume_point);
  void BeginWarmUp(const PlanTask& task, int newcomers);
  void SeekReplicas(const PlanTask& task);

  // Returns the job of `task`, or null if it has changed or was deleted.
  static JobRegistry::Entry* FindUnchanged(const JobRegistry::Transaction& transaction,
                                           const PlanTask& task);
  bool AllAttached(const PlanTask& task) const;
  // Returns whether the lease of a member has ended, or another process has its name.
  bool AnyGone(const PlanTask& task) const;
  bool HasRoom(const PlanTask& task, const JobRegistry::Transaction& transaction,
               const MemoryByPs& memory) const;
  bool HasRoomNow(const PlanTask& task, const MemoryByPs& memory) const;

  absl::StatusOr<PlanRequest> Prepare(const PlanTask& task, const v1::Job& record,
                                      const JobOrigin& origin,
                                      std::shared_ptr<const v1::Graph> graph);
  // Verifies the checkpoint that a plan starts from. Returns CANCELLED if the job now has another
  // checkpoint, if the plan would not be started, or if the worker stops. Otherwise fails as
  // ChooseRestore() does. Returns the data that it was trained on.
  absl::StatusOr<TrainedData> Verify(const PlanTask& task, const v1::Job& record,
                                     const JobOrigin& origin);
  void TellPassedOver(uint64_t number, const RestoreChoice& choice);

  JobRegistry* const registry_;
  Fleet* const fleet_;
  PsMemoryAccounting* const memory_;
  const ModelBuilder build_model_;
  const RestoreChooser choose_;
  mutable absl::Mutex mu_;
  UnderWay under_way_ ABSL_GUARDED_BY(mu_);
  // The parts of under_way_ that are still to do.
  std::array<std::deque<std::shared_ptr<const PlanTask>>, kLanes> queues_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::array<std::thread, kLanes> threads_;  // last, because they use the others
};

}  // namespace muster
