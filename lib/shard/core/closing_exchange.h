// With backup workers: how the shards agree whose gradients a step is made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/shard_assembly.h"
#include "lib/shard/core/step_closing.h"
#include "lib/shard/gate/backup_gate.h"
#include "lib/transport/core/wire.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// A shard's part: it tells shard 0 whose pushes of the open step are all there, and again when
// there are more (ARRIVED); shard 0 closes the step by the rules of StepClosing and tells with
// whose gradients (CLOSED). One message of either kind is under way at a time: what changes
// meanwhile is told when it is gone. The source is named at BackupGate.
//
// Thread-compatible; after construction nothing is allocated.
class ClosingExchange {
 public:
  // Of shard `shard` of the plan. `gate` is that shard's and outlives the exchange. `closed` is
  // called when the gate's open step was closed.
  ClosingExchange(const v1::JobPlan& plan, ShardIndex shard, BackupGate* gate,
                  ShardAssembly::Send send, std::function<void()> closed);

  // To be called when a push has arrived.
  void TellArrived();

  // What shard `header.rank` reports to shard 0: where it is to be placed, empty where it is not
  // wanted; then that it is there, or will not come.
  absl::Span<std::byte> Place(const WireHeader& header);
  void Arrived(const WireHeader& header);
  void Lost(const WireHeader& header);
  // From shard 0: the step is made of `ranks`. kWrongStep: not awaited; kWrongLength.
  RefusalReason StepClosed(const WireHeader& header, absl::Span<const std::byte> ranks);
  // What is under way from `shard` will not arrive.
  void ShardLost(ShardIndex shard) { assembly_->ShardLost(shard); }

  // No step is closed any more.
  void Retire() { retired_ = true; }
  // No message is being received and none sent.
  bool idle() const { return assembly_->idle(); }

 private:
  void CloseIfPossible();

  const ShardIndex shard_;
  BackupGate* const gate_;
  const std::function<void()> closed_;
  const bool has_gradients_;
  bool retired_ = false;
  // Messages are RankSets.
  std::vector<uint64_t> arrived_;
  int64_t arrived_step_ = -1;             // that `arrived_` is about
  std::vector<uint64_t> set_;             // that the last step was closed with
  std::unique_ptr<StepClosing> closing_;  // of shard 0
  std::unique_ptr<ShardAssembly> assembly_;
};

}  // namespace muster
