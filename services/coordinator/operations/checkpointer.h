// Checkpoint rounds, commits, pruning and restoring, for the members that write checkpoints and for
// users and jobs that read them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/job/resource_name.h"
#include "lib/security/identity.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "services/coordinator/checkpoints/checkpoint_round.h"
#include "services/coordinator/records/coordinator_metrics.h"
#include "services/coordinator/records/metric_series.h"
#include "services/coordinator/registry/job_registry.h"
#include "services/coordinator/store/commit_queue.h"

namespace muster {

// Reads and writes checkpoint bytes outside of the registry's transactions. Calls of users and
// shards wait for the disk; reports do not.
//
// A job that starts from another job's checkpoint needs it until it has a checkpoint of its own or
// has ended. Until then that checkpoint is neither pruned nor deleted.
//
// Thread-safe.
class Checkpointer {
 public:
  // The arguments must outlive the checkpointer.
  Checkpointer(JobRegistry* registry, MetricSeries* series, CoordinatorMetrics* metrics)
      : registry_(registry), series_(series), metrics_(metrics) {}

  // ---- Calls of users; see CheckpointService.
  absl::StatusOr<std::vector<v1::Checkpoint>> List(const std::string& parent);
  absl::StatusOr<v1::Checkpoint> Get(const std::string& name);
  absl::StatusOr<v1::Checkpoint> Find(const CheckpointRef& reference);

  // Deletes the checkpoint's folder, then its record in the store.
  // Returns FAILED_PRECONDITION (reason "CHECKPOINT_NEEDED") if another job starts from it, or if
  // it is the last one of its own job. Returns INVALID_ARGUMENT if the name has no step.
  absl::Status Delete(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);

  // Keeps a checkpoint for a job that is being created, as long as the pin exists.
  class Pin {
   public:
    Pin(Checkpointer* checkpointer, std::string job, int64_t step);
    ~Pin();
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

   private:
    Checkpointer* const checkpointer_;
    const std::string job_;
    const int64_t step_;
  };
  struct Pinned {
    v1::Checkpoint checkpoint;
    std::unique_ptr<Pin> pin;
  };
  // Like Find(), and pins the checkpoint. Waits for a pruning that is in progress.
  absl::StatusOr<Pinned> FindAndPin(const CheckpointRef& reference) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns FAILED_PRECONDITION (reason "CHECKPOINT_NEEDED") while another job needs one of the
  // job's checkpoints. Called within the caller's transaction.
  absl::Status CheckUnneeded(const JobRegistry::Transaction& transaction,
                             const JobRegistry::Entry& entry) ABSL_LOCKS_EXCLUDED(mu_);
  // Asks a running job for a checkpoint. Pass the result to Await().
  absl::StatusOr<Job::CheckpointRequest> Request(const std::string& job);
  // Blocks for up to `timeout` until there is a checkpoint of at least the requested step. Returns
  // nullopt after that. Returns ABORTED if the job stopped running first, or (reason
  // "CHECKPOINT_FAILED") if the requested checkpoint failed.
  absl::StatusOr<std::optional<v1::Checkpoint>> Await(const std::string& job,
                                                      const Job::CheckpointRequest& request,
                                                      absl::Duration timeout);

  // Saves every running job. Logs whether each one got a checkpoint of a step that it had not
  // reached at the call. It gets none if it stopped running, its checkpoint failed, or the time was
  // too short. Blocks for up to `timeout`; zero does nothing.
  void SaveRunningJobs(absl::Duration timeout);

  // ---- Calls for shards. `certificate`, if present, must be that of the member that has the
  // shard. Otherwise the calls return the error of CheckSpeaksAs().
  //
  // kStream: the stream has the shard's bytes. kDirect: the shard's member writes them itself.
  enum class Delivery { kStream, kDirect };
  // Begins a shard's stream into a checkpoint. Returns nullopt if the checkpoint is committed
  // already, so that nothing needs to be sent. Otherwise the caller must call EndShard() with the
  // status of the stream; its result is the shard's result. Job::AdmitShard lists the codes.
  // Returns FAILED_PRECONDITION (reason "DIRECT_OFF") for kDirect if the bytes must be sent: the
  // job says so, or a checkpoint of this generation that members wrote has failed.
  absl::StatusOr<std::optional<ShardUpload>> BeginShard(
      const v1::WriteShardHeader& header, const std::optional<Identity>& certificate = std::nullopt,
      Delivery delivery = Delivery::kStream);
  // Returns the file layout for a member that writes directly.
  std::vector<v1::WriteShardDirectResponse> LayoutFor(const ShardUpload& upload) const;
  absl::Status EndShard(const ShardUpload& upload, absl::Status stream);

  struct RestoreSource {
    std::shared_ptr<const v1::JobPlan> plan;
    std::string directory;
  };
  // Returns where a shard of a plan finds the checkpoint that the plan starts from.
  // Returns FAILED_PRECONDITION if the plan is not the current generation's or starts from initial
  // values.
  absl::StatusOr<RestoreSource> FindRestore(
      const v1::ReadShardRequest& request,
      const std::optional<Identity>& certificate = std::nullopt);

  // Records the result of reading a checkpoint for a shard or a user. Counts damage.
  void NoteRead(const absl::Status& read);

  // ---- Calls for members, within the caller's transaction. Takes the snapshot results of a
  // report. A shard that abandoned a periodic or final snapshot never ends its stream, perhaps
  // never opened one. Without this call the other shards would wait for the commit forever. A
  // skipped snapshot ends in the same way, but is not a failure. The job itself handles a snapshot
  // on demand.
  void TakeFailures(JobRegistry::Entry& entry, const std::string& member,
                    const v1::JobReport& report);

 private:
  CheckpointRound::Options RoundOf(const JobRegistry::Entry& entry,
                                   const v1::WriteShardHeader& header) const;
  void AbandonPassed(JobRegistry::Entry& entry, const std::string& member,
                     const v1::SnapshotReport& snapshot);
  void Abandon(JobRegistry::Entry& entry, CheckpointRounds::Key key, const absl::Status& why);
  absl::Status Commit(CheckpointRound& round);
  void PruneAfter(const CheckpointRound& round);
  // Ends what a `++pruning_[job]` began.
  void EndPruning(const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes checkpoints from the job's record in the store. Returns 0 if the job is gone.
  CommitQueue::Ticket Forget(const std::string& job, std::vector<int64_t> steps);
  // Returns the steps to keep. Reads the job's metrics log if its spec keeps the best checkpoints.
  absl::StatusOr<std::vector<int64_t>> Retained(const std::string& job,
                                                const v1::CheckpointSpec& spec);
  void AwaitStored(const std::string& job, CommitQueue::Ticket change);

  // Returns the steps of the job's checkpoints that are pinned, or that a job starts from.
  std::vector<int64_t> NeededSteps(const JobRegistry::Transaction& transaction,
                                   const std::string& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  JobRegistry* const registry_;
  MetricSeries* const series_;
  CoordinatorMetrics* const metrics_;
  absl::Mutex mu_;
  absl::btree_map<std::pair<std::string, int64_t>, int> pins_
      ABSL_GUARDED_BY(mu_);                                         // by job and step
  absl::btree_map<std::string, int> pruning_ ABSL_GUARDED_BY(mu_);  // by job: prunings in progress
};

}  // namespace muster
