#include "lib/shard/core/gradient_store.h"

#include <utility>

#include "absl/memory/memory.h"
#include "lib/plan/parameter_group.h"
#include "lib/plan/parameter_table.h"
#include "lib/shard/replication/shard_replica.h"
#include "lib/status/status.h"

namespace muster {

GradientStore::Chunk GradientStore::Lay(const v1::JobPlan& plan, ChunkId id) {
  const v1::PlanChunk& planned = plan.chunks(ToInt(id));
  Chunk chunk{.format = PushFormat(plan, id)};
  const v1::Parameter& parameter = plan.graph().parameters(planned.parameter());
  if (TreatmentOf(plan.spec().training(), parameter).frozen) return chunk;
  chunk.elements = planned.elements();
  chunk.stride = RoundedToLines(chunk.elements * static_cast<int64_t>(sizeof(float)));
  if (chunk.format.codec != WireCodec::kRaw) {
    chunk.payload_stride = RoundedToLines(chunk.format.bytes);
  }
  return chunk;
}

int64_t GradientStore::BytesNeeded(const v1::JobPlan& plan, ShardIndex shard) {
  int64_t bytes = SumBytesNeeded(plan, shard);
  for (const ChunkId id : ChunksOfShard(plan, shard)) {
    const Chunk chunk = Lay(plan, id);
    bytes += plan.workers_size() * (chunk.stride + chunk.payload_stride);
  }
  return bytes;
}

int64_t GradientStore::SumBytesNeeded(const v1::JobPlan& plan, ShardIndex shard) {
  int64_t bytes = 0;
  if (!HasReplica(plan, shard)) return bytes;
  for (const ChunkId id : ChunksOfShard(plan, shard)) bytes += Lay(plan, id).stride;
  return bytes;
}

absl::StatusOr<std::unique_ptr<GradientStore>> GradientStore::Create(
    const v1::JobPlan& plan, ShardIndex shard,
    std::shared_ptr<MemoryBudget::Reservation> reservation) {
  const int64_t sum_bytes = SumBytesNeeded(plan, shard);
  ASSIGN_OR_RETURN(std::shared_ptr<SharedSlab> sums, SharedSlab::Allocate(sum_bytes));
  ASSIGN_OR_RETURN(std::shared_ptr<Slab> slab,
                   Slab::Allocate(BytesNeeded(plan, shard) - sum_bytes, std::move(reservation)));
  return absl::WrapUnique(new GradientStore(plan, shard, std::move(slab), std::move(sums)));
}

GradientStore::GradientStore(const v1::JobPlan& plan, ShardIndex shard, std::shared_ptr<Slab> slab,
                             std::shared_ptr<SharedSlab> sums)
    : slab_(std::move(slab)), sums_(std::move(sums)), ranks_(plan.workers_size()) {
  std::byte* memory = slab_->memory().data();
  std::byte* sum = sums_->memory().data();
  for (const ChunkId id : ChunksOfShard(plan, shard)) {
    Chunk& chunk = chunks_.emplace_back(Lay(plan, id));
    chunk.memory = memory;
    memory += ranks_ * (chunk.stride + chunk.payload_stride);
    if (sum == nullptr) continue;
    chunk.sum = sum;
    sum += chunk.stride;
  }
}

absl::Span<float> GradientStore::Sum(LocalChunk index) const {
  const Chunk& chunk = chunks_[index];
  return {reinterpret_cast<float*>(chunk.sum), static_cast<size_t>(chunk.elements)};
}

absl::Span<float> GradientStore::Gradient(LocalChunk index, Rank rank) const {
  const Chunk& chunk = chunks_[index];
  return {reinterpret_cast<float*>(chunk.memory + ToInt(rank) * chunk.stride),
          static_cast<size_t>(chunk.elements)};
}

absl::Span<std::byte> GradientStore::PushMemory(LocalChunk index, Rank rank) const {
  const Chunk& chunk = chunks_[index];
  const auto bytes = static_cast<size_t>(chunk.format.bytes);
  if (chunk.payload_stride == 0) {
    // A 16-bit push is in the second half of its gradient, so the sum can be written from the front
    // while the push is read.
    const absl::Span<float> gradient = Gradient(index, rank);
    auto* const end = reinterpret_cast<std::byte*>(gradient.data() + gradient.size());
    return {end - bytes, bytes};
  }
  return {chunk.memory + ranks_ * chunk.stride + ToInt(rank) * chunk.payload_stride, bytes};
}

}  // namespace muster
