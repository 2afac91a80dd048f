// Where shards have backups: how all shards know which version every backup holds.
#pragma once

#include <cstdint>
#include <functional>

#include "lib/plan/numbers.h"
#include "lib/transport/core/wire.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// No chunk is brought from version s to s + 1 before every backup of the job holds version s. So
// when somebody dies every chunk is, here and on backups, at one of two versions that follow each
// other, m - 1 and m: every holder has m - 1, as its current version or as the one before. What
// each shard knows of its own backup alone would not do for that: a chunk elsewhere may be a step
// ahead of the shard, which is a step ahead of its backup.
//
// Each shard reports to shard 0 what its backup holds of all its chunks; shard 0 tells all what is
// held everywhere (HELD, without payload, in both directions). That goes on while the workers
// compute the next gradients. Answers to workers do not wait for it.
//
// Thread-compatible; after construction nothing is allocated.
class BackupAgreement {
 public:
  using Send = std::function<void(ShardIndex shard, const WireHeader& header)>;

  // Of shard `shard` of a plan in which some shard has a backup.
  BackupAgreement(const v1::JobPlan& plan, ShardIndex shard, Send send);

  // Whether a chunk of version `version` may be brought to the next one.
  bool Admits(int64_t version) const { return version <= everywhere_; }

  // The shard's own backup holds it. True where that changed what is admitted.
  bool OwnHeld(int64_t version);
  // A HELD of another shard: to shard 0 what its backup holds, from shard 0 what all do. Likewise.
  bool Arrived(const WireHeader& header);

 private:
  bool Count(ShardIndex shard, int64_t version);
  WireHeader Held(int64_t version) const;

  const ShardIndex shard_;
  const WireHeader header_;  // what all messages of the shard have in common
  const Send send_;
  // Of shard 0: by shard; INT64_MAX for one without gradients or without a backup.
  NumberedVector<ShardIndex, int64_t> held_;
  int64_t everywhere_;
};

}  // namespace muster
