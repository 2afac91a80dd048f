// One generation of a job on this parameter server: its shards here, and the threads that fetch and
// save for them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "lib/plan/numbers.h"
#include "lib/shard/checkpoint_client.h"
#include "lib/shard/memory_budget.h"
#include "lib/shard/parameter_shard.h"
#include "lib/shard/snapshot_writer.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/ps/ps_metrics.h"
#include "services/ps/shard_thread.h"

namespace muster {

// Thread-safe; no method waits for the network, for memory or for another job. A failure is
// reported as MEMBER_FAILED and nothing else happens until Release().
class ServedJob : private ShardListener {
 public:
  // All outlive the job.
  struct Environment {
    std::string member;
    std::vector<ShardThread*> threads;
    MemoryBudget* budget;
    CheckpointClient* checkpoints;
    PsMetrics* metrics;
    std::function<void()> report_soon;
  };

  // Begins to prepare.
  ServedJob(std::shared_ptr<const v1::JobPlan> plan, const Environment* environment);
  ~ServedJob() override;  // waits until the shards are gone

  const v1::JobPlan& plan() const { return *plan_; }

  // Idempotent.
  void Start(int64_t total_steps) ABSL_LOCKS_EXCLUDED(mu_);
  void TakeSnapshot(uint64_t id, int64_t step);
  // Drops everything, at once.
  void Release() ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing is left after Release(): the destructor will not wait.
  bool gone() const { return gone_; }

  v1::JobReport Report() ABSL_LOCKS_EXCLUDED(mu_);
  // Brings its gauges up to date.
  void ShowProgress() const;

 private:
  struct LocalShard {
    ShardIndex number;
    ShardThread* thread;
    ShardProgress progress;
    bool alive = false;  // posted to its thread and not yet destroyed; guarded by mu_
  };

  // Of its chunks here.
  int64_t LowestVersion() const;
  void Run(const std::stop_token& stop);
  absl::Status FindShards();
  absl::Status Prepare(const std::stop_token& stop);
  absl::StatusOr<std::unique_ptr<ParameterShard>> MakeShard(
      ShardIndex number, std::shared_ptr<MemoryBudget::Reservation> reservation,
      const std::stop_token& stop);
  void Fail(const absl::Status& status, const std::string& culprit = "") ABSL_LOCKS_EXCLUDED(mu_);
  LocalShard& Local(ShardIndex shard) const;
  void AwaitShardsGone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  SnapshotWriter::Options WriterOptions();

  void ShardInstalled(ShardIndex shard, const absl::Status& status) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void ShardFailed(ShardIndex shard, const absl::Status& status,
                   const std::string& culprit) override;
  void SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) override;
  void SnapshotDeclined(ShardIndex shard, uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
                        const std::string& message) override;
  void ShardReleased(ShardIndex shard) override ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<const v1::JobPlan> plan_;
  const Environment& environment_;
  std::vector<std::unique_ptr<LocalShard>> shards_;
  const absl::Status found_;  // of FindShards(), which fills shards_
  SnapshotWriter snapshots_;
  std::atomic<bool> gone_ = false;
  std::atomic<uint64_t> prepared_ = 0;  // chunks made and bytes restored, for JobReport

  absl::Mutex mu_;
  v1::MemberJobState state_ ABSL_GUARDED_BY(mu_) = v1::MEMBER_PREPARING;
  v1::MemberError error_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<MemoryBudget::Reservation> reservation_ ABSL_GUARDED_BY(mu_);
  bool released_ ABSL_GUARDED_BY(mu_) = false;
  int shards_awaited_ ABSL_GUARDED_BY(mu_) = 0;  // posted to their threads and not yet there

  std::jthread thread_;  // last: starts when everything else is there
};

}  // namespace muster
