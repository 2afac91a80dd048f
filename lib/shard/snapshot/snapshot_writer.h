// Writes the snapshots of a job's shards in this process to the coordinator and remembers what
// became of each.
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

// A thread for each shard: a write ends when the whole checkpoint is committed, which needs the
// other shards. Values that are not finite are not written, so that there is no checkpoint of them
// (unless the job ignores that): what would resume from it, or be pruned for it, is worth more.
// Thread-safe; no method waits for a write.
class SnapshotWriter {
 public:
  struct Options {
    std::shared_ptr<const v1::JobPlan> plan;
    CheckpointClient* checkpoints = nullptr;  // outlives the writer
    int shards = 1;                           // here, each with at most one snapshot under way
    // Called by the writer's threads when a write has ended, well or not: the shard does not need
    // the snapshot any more (ParameterShard::SnapshotWritten). `took`: the write.
    std::function<void(const ShardSnapshot& snapshot, absl::Duration took)> written;
    std::function<void()> report_soon;  // reports() has changed
  };
  explicit SnapshotWriter(Options options);
  ~SnapshotWriter();  // Close(), then waits for the threads

  // From ShardOutput; never block.
  void Taken(std::shared_ptr<const ShardSnapshot> snapshot) ABSL_LOCKS_EXCLUDED(mu_);
  void Declined(ShardIndex shard, uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
                const std::string& message) ABSL_LOCKS_EXCLUDED(mu_);

  // The last answer of every shard, apart for periodic and other snapshots; and the last periodic
  // one that it has passed over (SNAPSHOT_MISSED), which is not what became of the one before.
  std::vector<v1::SnapshotReport> reports() const ABSL_LOCKS_EXCLUDED(mu_);

  // Gives up what is being written and writes nothing more.
  void Close();
  // A snapshot is being read. Once it is not after Close(), none will be.
  bool reading() const ABSL_LOCKS_EXCLUDED(mu_);
  // Close(), then waits for the threads. Called once, if at all.
  void Join();

 private:
  static absl::Status CheckFinite(const v1::JobPlan& plan, const ShardSnapshot& snapshot);
  void Run(const std::stop_token& stop) ABSL_LOCKS_EXCLUDED(mu_);
  void Write(const ShardSnapshot& snapshot, const std::stop_token& stop);
  void Note(ShardIndex shard, uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
            const std::string& message = "") ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  Mailbox<std::shared_ptr<const ShardSnapshot>> snapshots_;  // to be written
  std::stop_source stop_;
  mutable absl::Mutex mu_;
  std::vector<v1::SnapshotReport> reports_ ABSL_GUARDED_BY(mu_);
  int reading_ ABSL_GUARDED_BY(mu_) = 0;  // threads
  std::vector<std::jthread> threads_;     // last: they use all of the above
};

}  // namespace muster
