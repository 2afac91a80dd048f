// The replication of a shard: what it sends to its replica, or what it receives as a replica.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/types/span.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/chunk_store.h"
#include "lib/shard/core/shard_output.h"
#include "lib/shard/core/shard_versions.h"
#include "lib/shard/replication/replica_agreement.h"
#include "lib/shard/replication/replica_feed.h"
#include "lib/shard/replication/replica_filling.h"
#include "lib/transport/core/wire.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// A shard with a replica sends it the plan's first version (ReplicaFeed), then the sum of every
// update. No shard of the job makes a version before all replicas hold the previous one
// (ReplicaAgreement). A replica applies no sum before it has the first version (ReplicaFilling). In
// a job without replicas this class allows everything and sends nothing.
//
// Thread-compatible: runs on the shard's thread, has no lock, and never blocks. Nothing is
// allocated after construction and BeginFilling(). Functions return true if updates that have
// waited may be possible now.
class ShardReplication {
 public:
  // `store` and `versions` must outlive this object; `versions` has the plan's first version.
  // `freed` is called when memory of the chunk is free again, inside the `done` of a message.
  ShardReplication(const v1::JobPlan& plan, ShardIndex shard, const ChunkStore& store,
                   const ShardVersions& versions, std::function<void(LocalChunk)> freed);
  void set_output(ShardOutput* output) { output_ = output; }

  // Returns whether the chunk may make the update of `step`.
  bool Allows(LocalChunk chunk, int64_t step) const;
  // True if no payload is being received or sent.
  bool idle() const {
    return (feed_ == nullptr || feed_->idle()) && (filling_ == nullptr || filling_->idle());
  }

  // ---- at a shard with a replica

  bool has_replica() const { return feed_ != nullptr; }
  // The version that the replica is known to hold; 0 without a replica.
  int64_t replica_version() const { return replica_version_; }
  // Called when the replica is connected. Sends the state that it lacks.
  void ReplicaConnected();
  // Sends the sum of an update. Requires: !is_forwarding(chunk).
  void Forward(LocalChunk chunk, const ReplicaFeed::Sum& sum) { feed_->Forward(chunk, sum); }
  bool is_forwarding(LocalChunk chunk) const {
    return feed_ != nullptr && feed_->is_forwarding(chunk);
  }
  // ReplicaHolds(): the replica reports that it holds version `header.step` of all chunks.
  // ReplicasHold(): another shard reports this for its own replica, or shard 0 for all.
  bool ReplicaHolds(const WireHeader& header);
  bool ReplicasHold(const WireHeader& header) {
    return replicas_ != nullptr && replicas_->Arrived(header);
  }

  // ---- at a replica

  // Waits for the state of the plan's first version.
  void BeginFilling();
  // False while that state is incomplete.
  bool is_filled() const { return filling_ == nullptr || filling_->complete(); }
  // Null unless BeginFilling() was called. Receives the state.
  ReplicaFilling* filling() { return filling_.get(); }
  // Reports to the shard that the replica holds the lowest version.
  void TellHeld();

 private:
  const v1::JobPlan& plan_;
  const ChunkStore& store_;
  const ShardVersions& versions_;
  ShardOutput* output_ = nullptr;
  int64_t replica_version_ = 0;
  std::unique_ptr<ReplicaFeed> feed_;           // only if the shard has a replica
  std::unique_ptr<ReplicaAgreement> replicas_;  // only if some shard has a replica
  std::unique_ptr<ReplicaFilling> filling_;     // only at a replica that starts empty
};

}  // namespace muster
