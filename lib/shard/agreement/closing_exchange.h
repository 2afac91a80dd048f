// How the shards of a job with backup workers agree on the ranks that contribute to a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "lib/plan/numbers.h"
#include "lib/shard/agreement/step_closing.h"
#include "lib/shard/chunks/shard_assembly.h"
#include "lib/shard/gate/backup_gate.h"
#include "lib/transport/core/wire.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// One shard's part of this agreement. It tells shard 0 the ranks that have pushed all of the
// shard's chunks of the open step, and again when there are more (ARRIVED). Shard 0 closes the step
// by the rules of StepClosing and sends the chosen ranks to all shards (CLOSED). At most one
// message of either kind is under way at a time. Changes in the meantime are sent when it is gone.
// BackupGate names the source.
//
// Thread-compatible. Nothing is allocated after construction.
class ClosingExchange {
 public:
  // Creates the part of shard `shard` of the plan. `gate` belongs to that shard and must outlive
  // the exchange. `closed` is called when the gate's open step was closed.
  ClosingExchange(const v1::JobPlan& plan, ShardIndex shard, BackupGate* gate,
                  ShardAssembly::Send send, std::function<void()> closed);

  // Called when a push has arrived.
  void TellArrived();

  // Handles the report of shard `header.rank` at shard 0. Place() returns its place, or an empty
  // span if it is not wanted. Each place is followed by Arrived() or Lost().
  absl::Span<std::byte> Place(const WireHeader& header);
  void Arrived(const WireHeader& header);
  void Lost(const WireHeader& header);
  // Handles the decision of shard 0: the step takes `ranks`. Returns kWrongStep if it is not
  // awaited, kWrongLength if the payload has the wrong size.
  RefusalReason StepClosed(const WireHeader& header, absl::Span<const std::byte> ranks);
  // Gives up all messages under way from `shard`.
  void ShardLost(ShardIndex shard) { assembly_->ShardLost(shard); }

  // Shard 0 closes no step after this call. Other shards still accept its decisions.
  void Retire() { retired_ = true; }
  // True if no message is being received or sent.
  bool idle() const { return assembly_->idle(); }

 private:
  void CloseIfPossible();

  const ShardIndex shard_;
  BackupGate* const gate_;
  const std::function<void()> closed_;
  const bool has_gradients_;
  bool retired_ = false;
  // The payloads of the messages, as RankSets.
  std::vector<uint64_t> arrived_;
  int64_t arrived_step_ = -1;             // the step of `arrived_`
  std::vector<uint64_t> set_;             // the ranks of the last closed step
  std::unique_ptr<StepClosing> closing_;  // only at shard 0
  std::unique_ptr<ShardAssembly> assembly_;
};

}  // namespace muster
