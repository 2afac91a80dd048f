#include "services/coordinator/plan_memory.h"

#include "lib/plan/numbers.h"
#include "lib/shard/chunk_store.h"
#include "lib/shard/gradient_store.h"

namespace muster {

absl::btree_map<std::string, PsMemory> MemoryOfPs(const v1::JobPlan& plan) {
  absl::btree_map<std::string, PsMemory> memory;
  if (plan.spec().sync().mode() == v1::ALLREDUCE) return memory;
  for (int shard = 0; shard < plan.shards_size(); ++shard) {
    PsMemory& ps = memory[plan.shards(shard).member()];
    ps.bytes += ChunkStore::BytesNeeded(plan, ShardIndex(shard));
    ps.bytes_per_worker +=
        GradientStore::BytesNeeded(plan, ShardIndex(shard)) / plan.workers_size();
  }
  return memory;
}

}  // namespace muster
