// The values and optimizer slots of the chunks of one shard.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/codec/codec.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/transport/core/shared_slab.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Stores several arrays per chunk. Array 0 holds the values; the next arrays hold the optimizer's
// slots. In a local_sgd job a chunk has a single array, because each slot is a separate chunk.
//
// Every array exists in two versions, plus one copy that a snapshot holds. The outgoing form of a
// version is what workers receive: the values themselves, or their 16-bit form. It may have more
// than two buffers (see ValueBuffersOf), so that a receiver that stalls in the middle of one
// version does not delay the next version for the others. GradientStore owns the memory that pushes
// are received into.
//
// The outgoing form is in a SharedSlab, which workers on this host read. The slots are in memory
// private to this process. Pages that are never written cost nothing.
//
// Thread-compatible. Nothing is allocated after Create().
class ChunkStore {
 public:
  // The buffers that hold one version.
  struct Version {
    int values = 0;  // in [0, value_buffers())
    int slots = 0;   // 0 or 1

    friend bool operator==(const Version&, const Version&) = default;
  };
  static constexpr Version kHeld = {.values = -1, .slots = 2};  // the snapshot's copy

  // Returns the memory that the shard needs, in bytes. Requires: the plan is valid.
  static int64_t BytesNeeded(const v1::JobPlan& plan, ShardIndex shard);
  // Creates the store; all values are zero. Returns RESOURCE_EXHAUSTED (reason "MEMORY_EXHAUSTED")
  // if the memory cannot be allocated.
  static absl::StatusOr<std::unique_ptr<ChunkStore>> Create(
      std::shared_ptr<const v1::JobPlan> plan, ShardIndex shard,
      std::shared_ptr<MemoryBudget::Reservation> reservation);
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  // Switches to the plan of the job's next generation. Returns false and changes nothing unless the
  // shard has the same chunks there, with the same memory layout and wire format of values.
  bool PassOnTo(std::shared_ptr<const v1::JobPlan> plan);

  int size() const { return chunks_.size(); }
  NumbersBelow<LocalChunk> chunks() const { return chunks_.numbers(); }
  ChunkId id(LocalChunk index) const { return chunks_[index].id; }
  // Returns nullopt if the plan has no such chunk or assigns it to another shard.
  std::optional<LocalChunk> Find(ChunkId id) const;
  int64_t elements(LocalChunk index) const { return chunks_[index].elements; }
  int arrays() const { return arrays_; }
  // The slot number of array `array` of the chunk in a checkpoint; 0 means the values.
  int SlotOf(LocalChunk index, int array) const { return chunks_[index].first_slot + array; }
  // The number of buffers for the outgoing form of a chunk.
  int value_buffers() const { return value_buffers_; }
  const WireFormat& values_format(LocalChunk index) const { return chunks_[index].values_format; }

  // f32[elements], 64-byte aligned.
  float* Array(LocalChunk index, const Version& version, int array) const;
  absl::Span<const float> Values(LocalChunk index, const Version& version) const {
    return {Array(index, version, 0), static_cast<size_t>(elements(index))};
  }
  void Copy(LocalChunk index, const Version& from, const Version& to);

  // The outgoing form of a version, values_format(index).bytes long. For f32 this is Array(index,
  // version, 0) itself.
  absl::Span<std::byte> WireValues(LocalChunk index, const Version& version) const;

  // Fills the values with their initial values. The slots keep the zeros that Create() gave them.
  void Initialize(LocalChunk index, const Version& version);
  // Begins a restore, also after one that was abandoned.
  void BeginRestore();
  // Restores one slice of the checkpoint. The slices of one slot of a chunk must come in order.
  // Returns DATA_LOSS on a checksum mismatch, INVALID_ARGUMENT for a slice that does not belong
  // here.
  absl::Status RestoreSlice(const v1::ShardSlice& slice, const Version& version);
  // Returns DATA_LOSS, naming the first incomplete chunk, unless every array was restored.
  absl::Status FinishRestore() const;

  size_t bytes() const { return outgoing_->memory().size() + slab_->memory().size(); }
  // outgoing() contains all WireValues(); slab() contains everything else.
  absl::Span<std::byte> outgoing() const { return outgoing_->memory(); }
  const std::shared_ptr<Slab>& slab() const { return slab_; }

 private:
  struct Chunk {
    ChunkId id{};
    int first_slot = 0;
    int64_t elements = 0;
    WireFormat values_format;
    int64_t stride = 0;           // bytes from one array to the next
    int64_t outgoing_stride = 0;  // of the outgoing form
    int64_t bytes = 0;            // of everything in `memory`
    std::byte* memory = nullptr;
    std::byte* outgoing = nullptr;

    // Whether the values are sent as they are, without conversion.
    bool sends_values() const { return values_format.dtype == WireDType::kF32; }
  };

  static constexpr LocalChunk kElsewhere{-1};

  ChunkStore(std::shared_ptr<const v1::JobPlan> plan, ShardIndex shard,
             std::shared_ptr<SharedSlab> outgoing, std::shared_ptr<Slab> slab);

  static int ArraysOf(const v1::JobPlan& plan);
  static int ValueBuffersOf(const v1::JobPlan& plan);
  static Chunk Lay(const v1::JobPlan& plan, ChunkId id);
  size_t RestoredAt(LocalChunk index, int array) const {
    return size_t{1} * ToInt(index) * arrays_ + array;
  }
  std::byte* ArrayNumber(const Chunk& chunk, int64_t number) const {
    return chunk.memory + number * chunk.stride;
  }

  std::shared_ptr<const v1::JobPlan> plan_;
  const ShardIndex shard_;
  const std::shared_ptr<SharedSlab> outgoing_;
  const std::shared_ptr<Slab> slab_;
  const int arrays_;
  const int value_buffers_;
  NumberedVector<LocalChunk, Chunk> chunks_;
  NumberedVector<ChunkId, LocalChunk> index_of_;  // kElsewhere: on another shard
  std::vector<int64_t> restored_bytes_;           // [chunk, array]
};

}  // namespace muster
