// Tells all shards of a job which version every replica holds.
#pragma once

#include <cstdint>
#include <functional>

#include "lib/plan/numbers.h"
#include "lib/transport/core/wire.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// No chunk goes from version s to s + 1 before every replica of the job holds version s. Every
// chunk, here and on replicas, is then at one of two successive versions, m - 1 and m. Whichever
// process dies, all remaining copies hold m - 1, as their current version or as the one before.
//
// It is not enough to wait for the shard's own replica. A chunk elsewhere may be a step ahead of
// the shard, which is a step ahead of its replica.
//
// Each shard reports to shard 0 the version that its replica holds of all its chunks. Shard 0 tells
// all shards the version that every replica holds. Both directions use HELD without payload. This
// runs while the workers compute the next gradients; answers to workers do not wait for it.
//
// Thread-compatible. Nothing is allocated after construction.
class ReplicaAgreement {
 public:
  using Send = std::function<void(ShardIndex shard, const WireHeader& header)>;

  // Creates the part of shard `shard`. Requires: some shard of the plan has a replica.
  ReplicaAgreement(const v1::JobPlan& plan, ShardIndex shard, Send send);

  // Returns whether a chunk at `version` may go to the next one.
  bool Admits(int64_t version) const { return version <= everywhere_; }

  // Records that the shard's own replica holds `version`. Returns true if Admits() changed.
  bool OwnHeld(int64_t version);
  // Handles a HELD of another shard: at shard 0 the version of that shard's replica, elsewhere the
  // version of all replicas. Returns true if Admits() changed.
  bool Arrived(const WireHeader& header);

 private:
  bool Count(ShardIndex shard, int64_t version);
  WireHeader Held(int64_t version) const;

  const ShardIndex shard_;
  const WireHeader header_;  // the fields that all messages of the shard share
  const Send send_;
  // Only used by shard 0. INT64_MAX for a shard without gradients or without a replica.
  NumberedVector<ShardIndex, int64_t> held_;
  int64_t everywhere_;
};

}  // namespace muster
