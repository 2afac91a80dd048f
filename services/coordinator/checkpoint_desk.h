// Checkpoints, for those who write them and those who want them back: rounds, commits, pruning,
// restoring.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/job/resource_name.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "services/coordinator/checkpoint_round.h"
#include "services/coordinator/commit_queue.h"
#include "services/coordinator/coordinator_metrics.h"
#include "services/coordinator/job_registry.h"

namespace muster {

// Thread-safe. Bytes of checkpoints are read and written outside of the registry's turns; calls of
// users and shards wait for the disk, reports do not.
class CheckpointDesk {
 public:
  // Both outlive the desk.
  CheckpointDesk(JobRegistry* registry, CoordinatorMetrics* metrics)
      : registry_(registry), metrics_(metrics) {}

  // ---- users; see CheckpointService for what each does.
  absl::StatusOr<std::vector<v1::Checkpoint>> List(const std::string& parent);
  absl::StatusOr<v1::Checkpoint> Get(const std::string& name);
  absl::StatusOr<v1::Checkpoint> Find(const CheckpointRef& reference);
  // Asks a running job for a checkpoint; Await() with the answer waits for it.
  absl::StatusOr<Job::CheckpointRequest> Request(const std::string& job);
  // The first checkpoint of at least the step that was asked for; nullopt when `timeout` passed;
  // ABORTED when the job stopped running before, or (reason "CHECKPOINT_FAILED") when none came of
  // the request.
  absl::StatusOr<std::optional<v1::Checkpoint>> Await(const std::string& job,
                                                      const Job::CheckpointRequest& request,
                                                      absl::Duration timeout);

  // ---- shards
  // A shard's stream into a checkpoint. nullopt: the checkpoint is committed already, nothing need
  // be sent. Otherwise EndShard() must follow, with the status of the stream; its answer is the
  // shard's. For codes see Job::AdmitShard.
  absl::StatusOr<std::optional<ShardUpload>> BeginShard(const v1::WriteShardHeader& header);
  absl::Status EndShard(const ShardUpload& upload, absl::Status stream);

  struct RestoreSource {
    std::shared_ptr<const v1::JobPlan> plan;
    std::string directory;
  };
  // Where a shard of a plan finds the checkpoint that the plan starts from. FAILED_PRECONDITION:
  // not the current generation, or the plan starts anew.
  absl::StatusOr<RestoreSource> FindRestore(const v1::ReadShardRequest& request);

  // ---- members, inside somebody's turn
  // A shard that has given up a periodic or final snapshot never ends its stream: without this the
  // others, which wait for the commit, would wait for ever. (One on demand is the job's to judge.)
  void TakeFailures(JobRegistry::Entry& entry, const std::string& member,
                    const v1::JobReport& report);

 private:
  void Abandon(JobRegistry::Entry& entry, CheckpointRounds::Key key, const absl::Status& why);
  absl::Status Commit(CheckpointRound& round);
  void PruneAfter(const CheckpointRound& round);
  void AwaitStored(const std::string& job, CommitQueue::Ticket change);

  JobRegistry* const registry_;
  CoordinatorMetrics* const metrics_;
};

}  // namespace muster
