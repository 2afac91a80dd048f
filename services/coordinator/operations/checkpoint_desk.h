// Checkpoints, for those who write them and those who want them back: rounds, commits, pruning,
// restoring.
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

// Thread-safe. Bytes of checkpoints are read and written outside of the registry's turns; calls of
// users and shards wait for the disk, reports do not.
//
// A job that starts from another job's checkpoint needs it until it has one of its own or has
// ended: it is neither pruned nor deleted before.
class CheckpointDesk {
 public:
  // All outlive the desk.
  CheckpointDesk(JobRegistry* registry, MetricSeries* series, CoordinatorMetrics* metrics)
      : registry_(registry), series_(series), metrics_(metrics) {}

  // ---- users; see CheckpointService for what each does.
  absl::StatusOr<std::vector<v1::Checkpoint>> List(const std::string& parent);
  absl::StatusOr<v1::Checkpoint> Get(const std::string& name);
  absl::StatusOr<v1::Checkpoint> Find(const CheckpointRef& reference);

  // Out of the store, and its folder away. FAILED_PRECONDITION (reason "CHECKPOINT_NEEDED"): a job
  // starts from it, or its own job may go on from it; INVALID_ARGUMENT: the name has no step.
  absl::Status Delete(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);

  // Keeps a checkpoint for a job that is still being made, while this exists.
  class Pin {
   public:
    Pin(CheckpointDesk* desk, std::string job, int64_t step);
    ~Pin();
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

   private:
    CheckpointDesk* const desk_;
    const std::string job_;
    const int64_t step_;
  };
  struct Pinned {
    v1::Checkpoint checkpoint;
    std::unique_ptr<Pin> pin;
  };
  // As Find(); waits for a pruning that is under way.
  absl::StatusOr<Pinned> FindAndPin(const CheckpointRef& reference) ABSL_LOCKS_EXCLUDED(mu_);
  // FAILED_PRECONDITION (reason "CHECKPOINT_NEEDED") while another job needs one of the job's
  // checkpoints. Inside somebody's turn.
  absl::Status CheckUnneeded(const JobRegistry::Turn& turn, const JobRegistry::Entry& entry)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Asks a running job for a checkpoint; Await() with the answer waits for it.
  absl::StatusOr<Job::CheckpointRequest> Request(const std::string& job);
  // The first checkpoint of at least the step that was asked for; nullopt when `timeout` passed;
  // ABORTED when the job stopped running before, or (reason "CHECKPOINT_FAILED") when none came of
  // the request.
  absl::StatusOr<std::optional<v1::Checkpoint>> Await(const std::string& job,
                                                      const Job::CheckpointRequest& request,
                                                      absl::Duration timeout);

  // Saves every running job: each has a checkpoint of a step that it had not reached at the call,
  // or has ended, or none came of it, which is logged. Blocks for up to `timeout`; zero: does
  // nothing.
  void SaveRunningJobs(absl::Duration timeout);

  // ---- shards
  // `certificate`, where there is one, must be that of the member that has the shard; else
  // CheckSpeaksAs() says why not.
  //
  // A shard's stream into a checkpoint. nullopt: the checkpoint is committed already, nothing need
  // be sent. Otherwise EndShard() must follow, with the status of the stream; its answer is the
  // shard's. For codes see Job::AdmitShard.
  //
  // Of a kDirect stream the shard's member writes the bytes; FAILED_PRECONDITION (reason
  // "DIRECT_OFF"): they are to be sent, since the job says so, or since a checkpoint of this
  // generation that members wrote has come to nothing.
  enum class Delivery { kStream, kDirect };
  absl::StatusOr<std::optional<ShardUpload>> BeginShard(
      const v1::WriteShardHeader& header, const std::optional<Identity>& certificate = std::nullopt,
      Delivery delivery = Delivery::kStream);
  // What to tell such a member.
  std::vector<v1::WriteShardDirectResponse> LayoutFor(const ShardUpload& upload) const;
  absl::Status EndShard(const ShardUpload& upload, absl::Status stream);

  struct RestoreSource {
    std::shared_ptr<const v1::JobPlan> plan;
    std::string directory;
  };
  // Where a shard of a plan finds the checkpoint that the plan starts from. FAILED_PRECONDITION:
  // not the current generation, or the plan starts anew.
  absl::StatusOr<RestoreSource> FindRestore(
      const v1::ReadShardRequest& request,
      const std::optional<Identity>& certificate = std::nullopt);

  // What came of reading a checkpoint for a shard or a user: damage is counted.
  void NoteRead(const absl::Status& read);

  // ---- members, inside somebody's turn
  // A shard that has given up a periodic or final snapshot never ends its stream: without this the
  // others, which wait for the commit, would wait for ever. Its members may all give up before one
  // of them has opened a stream. So it is with one that it passes over, which is no failure. (One
  // on demand is the job's to judge.)
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
  // Reads the job's log, where its spec wants the best.
  absl::StatusOr<std::vector<int64_t>> Retained(const std::string& job,
                                                const v1::CheckpointSpec& spec);
  void AwaitStored(const std::string& job, CommitQueue::Ticket change);

  // Of a job's checkpoints, those that others need.
  std::vector<int64_t> NeededSteps(const JobRegistry::Turn& turn, const std::string& job) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  JobRegistry* const registry_;
  MetricSeries* const series_;
  CoordinatorMetrics* const metrics_;
  absl::Mutex mu_;
  absl::btree_map<std::pair<std::string, int64_t>, int> pins_
      ABSL_GUARDED_BY(mu_);                                         // by job and step
  absl::btree_map<std::string, int> pruning_ ABSL_GUARDED_BY(mu_);  // by job: prunings under way
};

}  // namespace muster
