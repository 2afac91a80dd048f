// What a shard on a shard thread lets others know.
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

// How far a shard has come, kept up to date by its thread. Any thread may read.
struct ShardProgress {
  std::atomic<int64_t> lowest_version = 0;
  // Where it has a backup: the version that this holds.
  std::atomic<int64_t> backup_version = 0;
  // Where steps are judged, as of the last verdict.
  std::atomic<float> loss_scale = 0;
  std::atomic<int64_t> skips_in_row = 0;
};

// Hears what becomes of a shard. Called on the shard's thread, never in the steady state of
// training; must not block.
class ShardListener {
 public:
  virtual ~ShardListener() = default;
  // Where what the shard does is recorded, and on which track; outlives the shard. Null: nowhere.
  struct Recorder {
    Trace* trace = nullptr;
    int track = 0;
  };
  virtual Recorder RecorderOf(ShardIndex /*shard*/) { return {}; }
  // The shard answers messages from here on, or `status` says why it does not exist.
  virtual void ShardInstalled(ShardIndex shard, const absl::Status& status) = 0;
  // It was installed and cannot go on, for which `culprit`, another member, is to blame.
  virtual void ShardFailed(ShardIndex shard, const absl::Status& status,
                           const std::string& culprit) = 0;
  virtual void SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) = 0;
  virtual void SnapshotDeclined(ShardIndex shard, uint64_t id, int64_t step,
                                v1::SnapshotOutcome outcome, const std::string& message) = 0;
  // The link of a worker broke while the shard was in use. Others may go on, and he may come back.
  virtual void LinkLost(ShardIndex shard, const std::string& member) = 0;
  // The shard has left its thread, and nobody uses its memory any more: it is the listener's, to be
  // destroyed or to be continued. The last call.
  virtual void ShardReleased(std::unique_ptr<ParameterShard> shard) = 0;
};

}  // namespace muster
