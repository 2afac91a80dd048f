// One generation of a job on this parameter server: its shards and replicas here, and the threads
// that restore and save them.
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

// A shard or replica that a halted generation leaves to the next one.
struct HeldShard {
  std::unique_ptr<ParameterShard> shard;
  std::shared_ptr<MemoryBudget::Reservation> reservation;  // without that of gradients
};
using HeldShards = std::vector<HeldShard>;

// Thread-safe. No method waits for the network, for memory or for another job. A failure is
// reported as MEMBER_FAILED. Nothing else happens then until Halt() or Release().
class ServedJob : private ShardListener {
 public:
  // All members must outlive the job.
  struct Environment {
    std::string member;
    std::vector<ShardThread*> threads;
    MemoryBudget* budget;
    CheckpointClient* checkpoints;
    PsMetrics* metrics;
    std::function<void()> report_soon;
  };

  // Begins to prepare. `held` are the shards of the generation that the plan carries on, if any.
  // `trace` belongs to the job, across generations.
  ServedJob(std::shared_ptr<const v1::JobPlan> plan, const Environment* environment,
            HeldShards held = {}, std::shared_ptr<Trace> trace = std::make_shared<Trace>());
  ~ServedJob() override;  // waits until the shards are gone

  const v1::JobPlan& plan() const { return *plan_; }
  const std::shared_ptr<Trace>& trace() const { return trace_; }

  // Begins training. Does nothing unless prepared. Idempotent.
  void Start(int64_t total_steps) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes the requested snapshot. A halted job saves the shards that it holds, and the replicas
  // named in `asked`. Idempotent.
  void TakeSnapshot(const v1::Snapshot& asked) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the generation: stops all work and keeps the shards. If the job is still preparing, this
  // happens when the preparation ends. Reports MEMBER_HALTED when nothing uses the shards any more.
  // Idempotent.
  void Halt() ABSL_LOCKS_EXCLUDED(mu_);
  // Stops writing snapshots of a halted job's shards. Returns false while one is still being read;
  // the shards must not be changed yet.
  bool EndSaving() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the shards of a halted job, or nothing if it is not halted. Requires: EndSaving()
  // returned true. Release() must follow.
  HeldShards TakeHeld() ABSL_LOCKS_EXCLUDED(mu_);
  // Drops everything at once.
  void Release() ABSL_LOCKS_EXCLUDED(mu_);
  // True if nothing is left after Release(), so that the destructor will not wait.
  bool gone() const { return gone_; }

  v1::JobReport Report() ABSL_LOCKS_EXCLUDED(mu_);
  // Updates its gauges.
  void ShowProgress() const;

 private:
  struct LocalShard {
    ShardIndex number;
    ShardThread* thread;
    // as this shard sees it: PlanOfShard(), PlanOfReplica()
    std::shared_ptr<const v1::JobPlan> plan;
    bool is_replica = false;
    ShardProgress progress;
    // Guarded by mu_.
    bool awaited = false;  // posted to its thread, no answer yet
    bool alive = false;    // posted and not yet released
    // The memory that all generations share, and the part that depends on the number of workers.
    std::shared_ptr<MemoryBudget::Reservation> reservation;
    std::shared_ptr<MemoryBudget::Reservation> gradients;
    std::unique_ptr<ParameterShard> held;  // after Halt()
  };

  // These cover the shards here, without replicas.
  int64_t LowestVersion() const;
  int64_t ReplicaLag() const;
  int64_t CountOwn() const;
  void Run(const std::stop_token& stop);
  absl::Status FindShards();
  absl::Status AddLocal(ShardIndex number, int thread, bool is_replica);
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
  // `shards` is the largest number of snapshots that are written at the same time.
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
  const absl::Status found_;  // result of FindShards(), which fills shards_
  SnapshotWriter snapshots_;
  std::atomic<bool> gone_ = false;
  std::atomic<int64_t> bytes_ = 0;      // of its shards; 0 until known
  std::atomic<uint64_t> prepared_ = 0;  // chunks initialized and bytes restored, for JobReport

  absl::Mutex mu_;
  v1::MemberJobState state_ ABSL_GUARDED_BY(mu_) = v1::MEMBER_PREPARING;
  v1::MemberError error_ ABSL_GUARDED_BY(mu_);
  HeldShards carried_;  // used by the job's thread; under mu_ while shards are installed
  absl::btree_set<std::string> lost_links_ ABSL_GUARDED_BY(mu_);
  bool halting_ ABSL_GUARDED_BY(mu_) = false;
  bool released_ ABSL_GUARDED_BY(mu_) = false;
  int shards_missing_ ABSL_GUARDED_BY(mu_) = 0;   // not prepared yet
  uint64_t held_asked_ ABSL_GUARDED_BY(mu_) = 0;  // the latest requested snapshot of held shards
  // Writes snapshots of held shards; made on the first request. snapshots_ has ended with the
  // generation.
  std::unique_ptr<SnapshotWriter> held_snapshots_ ABSL_GUARDED_BY(mu_);

  std::jthread thread_;  // last: starts when everything else exists
};

}  // namespace muster
