#include "services/coordinator/scheduling/plan_memory.h"

#include "lib/plan/numbers.h"
#include "lib/shard/chunks/chunk_store.h"
#include "lib/shard/core/gradient_store.h"

namespace muster {

absl::btree_map<std::string, PsMemory> MemoryOfPs(const v1::JobPlan& plan) {
  absl::btree_map<std::string, PsMemory> memory;
  if (plan.spec().sync().mode() == v1::ALLREDUCE) return memory;
  for (int shard = 0; shard < plan.shards_size(); ++shard) {
    const int64_t state = ChunkStore::BytesNeeded(plan, ShardIndex(shard));
    const int64_t sums = GradientStore::SumBytesNeeded(plan, ShardIndex(shard));
    PsMemory& ps = memory[plan.shards(shard).member()];
    ps.bytes += state + sums;
    ps.bytes_per_worker +=
        (GradientStore::BytesNeeded(plan, ShardIndex(shard)) - sums) / plan.workers_size();
    // A replica needs the state and the sums of its shard, but nothing per worker.
    if (!plan.shards(shard).has_backup()) continue;
    memory[plan.shards(shard).backup().member()].bytes += state + sums;
  }
  return memory;
}

}  // namespace muster
