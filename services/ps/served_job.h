// One generation of a job on this parameter server: its shards here, backups of others, and the
// threads that fetch and save for them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/shard/snapshot/checkpoint_client.h"
#include "lib/shard/snapshot/snapshot_writer.h"
#include "lib/telemetry/trace.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/ps/ps_metrics.h"
#include "services/ps/shard_thread.h"

namespace muster {

// What a halted generation leaves to the next one: shards, or backups of some.
struct HeldShard {
  std::unique_ptr<ParameterShard> shard;
  std::shared_ptr<MemoryBudget::Reservation> reservation;  // without gradients
};
using HeldShards = std::vector<HeldShard>;

// Thread-safe; no method waits for the network, for memory or for another job. A failure is
// reported as MEMBER_FAILED and nothing else happens until Halt() or Release().
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

  // Begins to prepare. `held`: of the generation that the plan carries on, if it does. `trace`: of
  // the job, whatever its generation.
  ServedJob(std::shared_ptr<const v1::JobPlan> plan, const Environment* environment,
            HeldShards held = {}, std::shared_ptr<Trace> trace = std::make_shared<Trace>());
  ~ServedJob() override;  // waits until the shards are gone

  const v1::JobPlan& plan() const { return *plan_; }
  const std::shared_ptr<Trace>& trace() const { return trace_; }

  // Idempotent.
  void Start(int64_t total_steps) ABSL_LOCKS_EXCLUDED(mu_);
  // Of a job that is halted: of what it holds, with the backups that are asked for. Idempotent.
  void TakeSnapshot(const v1::Snapshot& asked) ABSL_LOCKS_EXCLUDED(mu_);
  // The generation is over: stops everything, however far it is, and keeps the shards. Reported as
  // MEMBER_HALTED when nobody uses them any more. Idempotent.
  void Halt() ABSL_LOCKS_EXCLUDED(mu_);
  // Writes no more snapshots of what a halted job holds. False: something is still being read for
  // one, so that nobody may have it yet.
  bool EndSaving() ABSL_LOCKS_EXCLUDED(mu_);
  // Of a job that is halted and does not save; nothing otherwise. To be released then.
  HeldShards TakeHeld() ABSL_LOCKS_EXCLUDED(mu_);
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
    std::shared_ptr<const v1::JobPlan> plan;  // in its eyes: PlanOfShard(), PlanOfBackup()
    bool is_backup = false;
    ShardProgress progress;
    // Guarded by mu_.
    bool awaited = false;  // posted to its thread, which has not answered yet
    bool alive = false;    // posted and not yet released
    // Of what generations have in common, and of what depends on the number of workers.
    std::shared_ptr<MemoryBudget::Reservation> reservation;
    std::shared_ptr<MemoryBudget::Reservation> gradients;
    std::unique_ptr<ParameterShard> held;  // after Halt()
  };

  // Of its chunks here.
  int64_t LowestVersion() const;
  int64_t BackupLag() const;
  int64_t CountOwn() const;
  void Run(const std::stop_token& stop);
  absl::Status FindShards();
  absl::Status AddLocal(ShardIndex number, int thread, bool is_backup);
  bool IsCarried(const LocalShard& shard) const;
  absl::Status Prepare(const std::stop_token& stop) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status InstallShards(const std::stop_token& stop) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Install(LocalShard& shard, const std::stop_token& stop) ABSL_LOCKS_EXCLUDED(mu_);
  std::unique_ptr<ParameterShard> TakeCarried(ShardIndex number) ABSL_LOCKS_EXCLUDED(mu_);
  void RetireReservations() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool TakesHalt() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void HaltShards() ABSL_LOCKS_EXCLUDED(mu_);
  void SaveHeld(const v1::Snapshot& asked) ABSL_LOCKS_EXCLUDED(mu_);
  SnapshotWriter* held_snapshots() ABSL_LOCKS_EXCLUDED(mu_);
  ParameterShard::HeldVersions VersionsHeld() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status ReserveMemory(const std::stop_token& stop) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::unique_ptr<ParameterShard>> MakeShard(const LocalShard& local,
                                                            const std::stop_token& stop)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Fail(const absl::Status& status, const std::string& culprit = "") ABSL_LOCKS_EXCLUDED(mu_);
  LocalShard& Local(ShardIndex shard) const;
  void AwaitShardsGone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `shards`: that it may have to write at a time.
  SnapshotWriter::Options WriterOptions(int64_t shards);

  Recorder RecorderOf(ShardIndex shard) override { return {trace_.get(), ToInt(shard)}; }
  void ShardInstalled(ShardIndex shard, const absl::Status& status) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void ShardFailed(ShardIndex shard, const absl::Status& status,
                   const std::string& culprit) override;
  void SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) override;
  void SnapshotDeclined(ShardIndex shard, uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
                        const std::string& message) override;
  void LinkLost(ShardIndex shard, const std::string& member) override ABSL_LOCKS_EXCLUDED(mu_);
  void ShardReleased(std::unique_ptr<ParameterShard> shard) override ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<const v1::JobPlan> plan_;
  const Environment& environment_;
  const std::shared_ptr<Trace> trace_;
  std::vector<std::unique_ptr<LocalShard>> shards_;
  const absl::Status found_;  // of FindShards(), which fills shards_
  SnapshotWriter snapshots_;
  std::atomic<bool> gone_ = false;
  std::atomic<int64_t> bytes_ = 0;      // of its shards, once that is known
  std::atomic<uint64_t> prepared_ = 0;  // chunks made and bytes restored, for JobReport

  absl::Mutex mu_;
  v1::MemberJobState state_ ABSL_GUARDED_BY(mu_) = v1::MEMBER_PREPARING;
  v1::MemberError error_ ABSL_GUARDED_BY(mu_);
  HeldShards carried_;  // of the job's thread, and under mu_ while shards are installed
  absl::btree_set<std::string> lost_links_ ABSL_GUARDED_BY(mu_);
  bool halting_ ABSL_GUARDED_BY(mu_) = false;
  bool released_ ABSL_GUARDED_BY(mu_) = false;
  int shards_missing_ ABSL_GUARDED_BY(mu_) = 0;   // to be prepared
  uint64_t held_asked_ ABSL_GUARDED_BY(mu_) = 0;  // the newest snapshot of what is held
  // Of what is held, since one was asked for: the other one has ended with the generation.
  std::unique_ptr<SnapshotWriter> held_snapshots_ ABSL_GUARDED_BY(mu_);

  std::jthread thread_;  // last: starts when everything else is there
};

}  // namespace muster
