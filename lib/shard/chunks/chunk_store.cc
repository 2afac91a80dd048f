#include "lib/shard/chunks/chunk_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "lib/graph/initializer.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"

namespace muster {

int ChunkStore::ArraysOf(const v1::JobPlan& plan) {
  if (plan.spec().sync().mode() == v1::LOCAL_SGD) return 1;
  return 1 + static_cast<int>(OptimizerSlotNames(plan.spec().training().optimizer()).size());
}

// A worker gets no new value of a chunk before it has taken the last one, so a worker that stalls
// holds at most one version. If the other workers continue without it, the version that it holds
// needs a buffer besides the two in use.
int ChunkStore::ValueBuffersOf(const v1::JobPlan& plan) {
  const v1::SyncSpec& sync = plan.spec().sync();
  const bool asynchronous = sync.mode() == v1::SSP || sync.mode() == v1::ASP;
  return 2 + (asynchronous ? 1 : static_cast<int>(sync.backup_workers()));
}

ChunkStore::Chunk ChunkStore::Lay(const v1::JobPlan& plan, ChunkId id) {
  const v1::PlanChunk& planned = plan.chunks(ToInt(id));
  Chunk chunk{.id = id,
              .first_slot = planned.slot(),
              .elements = planned.elements(),
              .values_format = ValuesFormat(plan, id)};
  chunk.stride = RoundedToLines(chunk.elements * static_cast<int64_t>(sizeof(float)));
  chunk.outgoing_stride = RoundedToLines(chunk.values_format.bytes);
  const int slots = ArraysOf(plan) - 1;
  const int arrays = 3 * slots + (chunk.sends_values() ? 1 : 3);
  chunk.bytes = arrays * chunk.stride;
  return chunk;
}

int64_t ChunkStore::BytesNeeded(const v1::JobPlan& plan, ShardIndex shard) {
  int64_t bytes = 0;
  for (const ChunkId id : ChunksOfShard(plan, shard)) {
    const Chunk chunk = Lay(plan, id);
    bytes += chunk.bytes + ValueBuffersOf(plan) * chunk.outgoing_stride;
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<ChunkStore>> ChunkStore::Create(
    std::shared_ptr<const v1::JobPlan> plan, ShardIndex shard,
    std::shared_ptr<MemoryBudget::Reservation> reservation) {
  int64_t outgoing_bytes = 0;
  for (const ChunkId id : ChunksOfShard(*plan, shard)) {
    outgoing_bytes += ValueBuffersOf(*plan) * Lay(*plan, id).outgoing_stride;
  }
  ASSIGN_OR_RETURN(std::shared_ptr<SharedSlab> outgoing, SharedSlab::Allocate(outgoing_bytes));
  ASSIGN_OR_RETURN(
      std::shared_ptr<Slab> slab,
      Slab::Allocate(BytesNeeded(*plan, shard) - outgoing_bytes, std::move(reservation)));
  return absl::WrapUnique(
      new ChunkStore(std::move(plan), shard, std::move(outgoing), std::move(slab)));
}

ChunkStore::ChunkStore(std::shared_ptr<const v1::JobPlan> plan, ShardIndex shard,
                       std::shared_ptr<SharedSlab> outgoing, std::shared_ptr<Slab> slab)
    : plan_(std::move(plan)),
      shard_(shard),
      outgoing_(std::move(outgoing)),
      slab_(std::move(slab)),
      arrays_(ArraysOf(*plan_)),
      value_buffers_(ValueBuffersOf(*plan_)),
      index_of_(plan_->chunks_size(), kElsewhere) {
  std::byte* memory = slab_->memory().data();
  std::byte* out = outgoing_->memory().data();
  for (const ChunkId id : ChunksOfShard(*plan_, shard)) {
    index_of_[id] = LocalChunk(size());
    Chunk& chunk = chunks_.emplace_back(Lay(*plan_, id));
    chunk.memory = memory;
    memory += chunk.bytes;
    chunk.outgoing = out;
    out += value_buffers_ * chunk.outgoing_stride;
  }
  BeginRestore();
}

bool ChunkStore::PassOnTo(std::shared_ptr<const v1::JobPlan> plan) {
  if (ArraysOf(*plan) != arrays_ || ValueBuffersOf(*plan) != value_buffers_ ||
      plan->chunks_size() != plan_->chunks_size()) {
    return false;
  }
  LocalChunk next{0};
  for (const ChunkId id : ChunksOfShard(*plan, shard_)) {
    if (index_of_[id] != next) return false;
    const Chunk laid = Lay(*plan, id);
    const Chunk& chunk = chunks_[next];
    const v1::PlanChunk& now = plan->chunks(ToInt(id));
    const v1::PlanChunk& before = plan_->chunks(ToInt(id));
    if (now.parameter() != before.parameter() || now.offset() != before.offset() ||
        laid.first_slot != chunk.first_slot || laid.elements != chunk.elements ||
        laid.values_format.dtype != chunk.values_format.dtype ||
        laid.values_format.codec != chunk.values_format.codec || laid.bytes != chunk.bytes) {
      return false;
    }
    next = LocalChunk(ToInt(next) + 1);
  }
  if (ToInt(next) != size()) return false;
  plan_ = std::move(plan);
  return true;
}

std::optional<LocalChunk> ChunkStore::Find(ChunkId id) const {
  if (!index_of_.Has(id) || index_of_[id] == kElsewhere) return std::nullopt;
  return index_of_[id];
}

// ---------------------------------------------------------------- memory layout

// Layout of a chunk's memory: the slots of version 0, of version 1 and of the snapshot; the
// snapshot's values; then, only if the outgoing form is not f32, the values of both versions.
float* ChunkStore::Array(LocalChunk index, const Version& version, int array) const {
  const Chunk& chunk = chunks_[index];
  const int slots = arrays_ - 1;
  std::byte* at = nullptr;
  if (array > 0) {
    at = ArrayNumber(chunk, version.slots * slots + array - 1);
  } else if (version == kHeld) {
    at = ArrayNumber(chunk, 3 * slots);
  } else if (chunk.sends_values()) {
    at = chunk.outgoing + version.values * chunk.outgoing_stride;
  } else {
    at = ArrayNumber(chunk, 3 * slots + 1 + version.slots);
  }
  return reinterpret_cast<float*>(at);
}

void ChunkStore::Copy(LocalChunk index, const Version& from, const Version& to) {
  const int64_t stride = chunks_[index].stride;
  // Strides include the padding to whole cache lines, so the slots are one contiguous block.
  std::memcpy(Array(index, to, 0), Array(index, from, 0), stride);
  if (arrays_ == 1) return;
  std::memcpy(Array(index, to, 1), Array(index, from, 1), (arrays_ - 1) * stride);
}

absl::Span<std::byte> ChunkStore::WireValues(LocalChunk index, const Version& version) const {
  const Chunk& chunk = chunks_[index];
  return {chunk.outgoing + version.values * chunk.outgoing_stride,
          static_cast<size_t>(chunk.values_format.bytes)};
}

// ---------------------------------------------------------------- initial values

void ChunkStore::Initialize(LocalChunk index, const Version& version) {
  const Chunk& chunk = chunks_[index];
  if (chunk.first_slot != 0) return;  // its memory is zero already
  const v1::PlanChunk& planned = plan_->chunks(ToInt(chunk.id));
  FillInitialValues(plan_->graph().parameters(planned.parameter()).initializer(),
                    plan_->spec().training().seed(), planned.parameter(), planned.offset(),
                    {Array(index, version, 0), static_cast<size_t>(chunk.elements)});
}

void ChunkStore::BeginRestore() { restored_bytes_.assign(chunks_.size() * arrays_, 0); }

absl::Status ChunkStore::RestoreSlice(const v1::ShardSlice& slice, const Version& version) {
  const std::optional<LocalChunk> found = Find(ChunkId(slice.chunk()));
  const int array = found ? slice.slot() - chunks_[*found].first_slot : -1;
  if (array < 0 || array >= arrays_) {
    return absl::InvalidArgumentError(absl::StrCat("shard ", ToInt(shard_), " has no chunk ",
                                                   slice.chunk(), ", slot ", slice.slot()));
  }
  const LocalChunk index = *found;
  const auto size = static_cast<int64_t>(slice.data().size());
  const int64_t bytes = elements(index) * static_cast<int64_t>(sizeof(float));
  int64_t& restored = restored_bytes_[RestoredAt(index, array)];
  if (slice.offset_bytes() != restored || size > bytes - restored) {
    return absl::InvalidArgumentError(absl::StrCat(
        "chunk ", slice.chunk(), ", slot ", slice.slot(), ": bytes [", slice.offset_bytes(), ", +",
        size, ") do not follow byte ", restored, " of ", bytes));
  }
  const uint32_t crc =
      Crc32c({reinterpret_cast<const std::byte*>(slice.data().data()), slice.data().size()});
  if (crc != slice.crc32c()) {
    return absl::DataLossError(absl::StrCat("chunk ", slice.chunk(), ", slot ", slice.slot(),
                                            ", bytes [", restored, ", +", size,
                                            "): checksum mismatch"));
  }
  std::memcpy(reinterpret_cast<std::byte*>(Array(index, version, array)) + restored,
              slice.data().data(), size);
  restored += size;
  return absl::OkStatus();
}

absl::Status ChunkStore::FinishRestore() const {
  for (const LocalChunk index : chunks()) {
    const int64_t expected = elements(index) * static_cast<int64_t>(sizeof(float));
    for (int array = 0; array < arrays_; ++array) {
      const int64_t restored = restored_bytes_[RestoredAt(index, array)];
      if (restored == expected) continue;
      return absl::DataLossError(absl::StrCat("chunk ", ToInt(id(index)), ", slot ",
                                              SlotOf(index, array), ": ", restored, " bytes of ",
                                              expected, " in the checkpoint"));
    }
  }
  return absl::OkStatus();
}

}  // namespace muster
