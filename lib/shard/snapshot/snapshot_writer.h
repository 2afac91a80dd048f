// Writes the snapshots of a job's shards in this process to the coordinator and keeps the outcome
// of each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/concurrency/mailbox.h"
#include "lib/plan/numbers.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/shard/snapshot/checkpoint_client.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// There are as many threads as shards, because a write ends only when the whole checkpoint is
// committed, which needs the other shards. A snapshot with non-finite values is not written, unless
// the job ignores such values. It could otherwise replace a good checkpoint. Thread-safe. No method
// waits for a write, except Join() and the destructor.
class SnapshotWriter {
 public:
  struct Options {
    std::shared_ptr<const v1::JobPlan> plan;
    CheckpointClient* checkpoints = nullptr;  // outlives the writer
    int shards = 1;  // in this process; each has at most one snapshot under way
    // Called by the writer's threads when a write has ended, with or without success. The shard no
    // longer needs the snapshot (ParameterShard::SnapshotWritten). `took` is the duration of the
    // write.
    std::function<void(const ShardSnapshot& snapshot, absl::Duration took)> written;
    std::function<void()> report_soon;  // called when reports() has changed
  };
  explicit SnapshotWriter(Options options);
  ~SnapshotWriter();  // calls Close(), then waits for the threads

  // Called from ShardOutput. Never block.
  void Taken(std::shared_ptr<const ShardSnapshot> snapshot) ABSL_LOCKS_EXCLUDED(mu_);
  void Declined(ShardIndex shard, uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
                const std::string& message) ABSL_LOCKS_EXCLUDED(mu_);

  // The last outcome of every shard, kept apart for periodic and for other snapshots. In addition,
  // the last periodic snapshot that the shard passed over (SNAPSHOT_MISSED); it does not replace
  // the outcome of the one before.
  std::vector<v1::SnapshotReport> reports() const ABSL_LOCKS_EXCLUDED(mu_);

  // Abandons running writes and starts no more.
  void Close();
  // True while a thread reads a snapshot. If false after Close(), no thread will read one again.
  bool reading() const ABSL_LOCKS_EXCLUDED(mu_);
  // Calls Close(), then waits for the threads. Call at most once.
  void Join();

 private:
  static absl::Status CheckFinite(const v1::JobPlan& plan, const ShardSnapshot& snapshot);
  void Run(const std::stop_token& stop) ABSL_LOCKS_EXCLUDED(mu_);
  void Write(const ShardSnapshot& snapshot, const std::stop_token& stop);
  void Note(ShardIndex shard, uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
            const std::string& message = "") ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  Mailbox<std::shared_ptr<const ShardSnapshot>> snapshots_;  // waiting to be written
  std::stop_source stop_;
  mutable absl::Mutex mu_;
  std::vector<v1::SnapshotReport> reports_ ABSL_GUARDED_BY(mu_);
  int reading_ ABSL_GUARDED_BY(mu_) = 0;  // threads
  std::vector<std::jthread> threads_;     // last: they use all of the above
};

}  // namespace muster
