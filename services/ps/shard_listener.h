// Events of a shard on a shard thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "lib/plan/numbers.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/telemetry/trace.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// The progress of a shard. Its thread updates it; any thread may read it.
struct ShardProgress {
  std::atomic<int64_t> lowest_version = 0;
  // The version that the shard's replica holds, if it has one.
  std::atomic<int64_t> replica_version = 0;
  // Results of the last verdict, if steps are judged.
  std::atomic<float> loss_scale = 0;
  std::atomic<int64_t> skips_in_row = 0;
};

// Receives the events of a shard. Called on the shard's thread, never in the steady state of
// training. Only a stopped thread's refusal, ShardInstalled() with CANCELLED, comes on the thread
// that called ShardThread::Install(). Must not block.
class ShardListener {
 public:
  virtual ~ShardListener() = default;
  // The trace and track that record the shard's work; must outlive the shard. A null trace records
  // nothing.
  struct Recorder {
    Trace* trace = nullptr;
    int track = 0;
  };
  virtual Recorder RecorderOf(ShardIndex /*shard*/) { return {}; }
  // The shard answers messages from now on, or `status` says why it was not installed.
  virtual void ShardInstalled(ShardIndex shard, const absl::Status& status) = 0;
  // An installed shard cannot continue; `culprit`, another member, is at fault.
  virtual void ShardFailed(ShardIndex shard, const absl::Status& status,
                           const std::string& culprit) = 0;
  virtual void SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) = 0;
  virtual void SnapshotDeclined(ShardIndex shard, uint64_t id, int64_t step,
                                v1::SnapshotOutcome outcome, const std::string& message) = 0;
  // The link of a worker broke while the shard was in use. Other workers may continue, and the
  // worker may come back.
  virtual void LinkLost(ShardIndex shard, const std::string& member) = 0;
  // The last call. The shard has left its thread, and nothing uses its memory any more. The
  // listener owns it now, to destroy or continue it.
  virtual void ShardReleased(std::unique_ptr<ParameterShard> shard) = 0;
};

}  // namespace muster
