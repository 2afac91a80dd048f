#include "services/coordinator/scheduling/ps_memory_accounting.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "lib/plan/numbers.h"
#include "lib/shard/chunks/chunk_store.h"
#include "lib/shard/core/gradient_store.h"

namespace muster {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

}  // namespace

int64_t CapacityOf(const v1::Hello& ps) {
  return ps.memory_bytes() > 0 ? ps.memory_bytes() : kUnlimited;
}

int64_t RoomOf(const v1::Hello& ps, const BytesByPs& taken) {
  const auto bytes = taken.find(ps.member());
  if (CapacityOf(ps) == kUnlimited || bytes == taken.end()) return CapacityOf(ps);
  return CapacityOf(ps) - bytes->second;
}

MemoryByPs MemoryOfPs(const v1::JobPlan& plan) {
  MemoryByPs memory;
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

PsMemory MostOf(const MemoryByPs& memory) {
  PsMemory most;
  for (const auto& [ps, bytes] : memory) {
    most.bytes = std::max(most.bytes, bytes.bytes);
    most.bytes_per_worker = std::max(most.bytes_per_worker, bytes.bytes_per_worker);
  }
  return most;
}

void PsMemoryAccounting::Take(const v1::JobPlan& plan, MemoryByPs memory) {
  Taken taken{.generation = plan.generation()};
  for (const auto& [ps, bytes] : memory) taken.bytes[ps] = bytes.With(plan.workers_size());
  taken.memory = std::move(memory);
  absl::MutexLock lock(&mu_);
  needs_.erase(plan.job_number());
  taken_[plan.job_number()] = std::move(taken);
}

bool PsMemoryAccounting::Knows(const v1::JobPlan& plan) const {
  absl::MutexLock lock(&mu_);
  const auto taken = taken_.find(plan.job_number());
  return taken != taken_.end() && taken->second.generation == plan.generation();
}

void PsMemoryAccounting::KeepOnly(const absl::flat_hash_set<uint64_t>& active) {
  absl::MutexLock lock(&mu_);
  absl::erase_if(taken_, [&](const auto& job) { return !active.contains(job.first); });
}

BytesByPs PsMemoryAccounting::SumOf(absl::Span<const uint64_t> jobs) const {
  BytesByPs sum;
  absl::MutexLock lock(&mu_);
  for (const uint64_t job : jobs) {
    const auto taken = taken_.find(job);
    if (taken == taken_.end()) continue;
    for (const auto& [ps, bytes] : taken->second.bytes) sum[ps] += bytes;
  }
  return sum;
}

void PsMemoryAccounting::Need(uint64_t job, int ps, MemoryByPs memory, absl::Time now) {
  const PsMemory most = MostOf(memory);
  absl::MutexLock lock(&mu_);
  needs_[job] = {.ps = ps, .learnt = now, .memory = std::move(memory), .most = most};
}

void PsMemoryAccounting::ForgetNeeds(absl::Time now,
                                     absl::FunctionRef<bool(uint64_t job, int ps)> waits) {
  absl::MutexLock lock(&mu_);
  absl::erase_if(needs_, [&](const auto& need) {
    return now - need.second.learnt >= kNeedAge || !waits(need.first, need.second.ps);
  });
}

PsMemory PsMemoryAccounting::MostNeeded(uint64_t job) const {
  absl::MutexLock lock(&mu_);
  const auto need = needs_.find(job);
  return need == needs_.end() ? PsMemory{} : need->second.most;
}

MemoryByPs PsMemoryAccounting::MemoryOf(uint64_t job) const {
  absl::MutexLock lock(&mu_);
  if (const auto need = needs_.find(job); need != needs_.end()) return need->second.memory;
  const auto taken = taken_.find(job);
  return taken == taken_.end() ? MemoryByPs{} : taken->second.memory;
}

}  // namespace muster
