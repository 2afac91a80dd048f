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

// Every chunk has several arrays: array 0 are the values, the next ones the optimizer's slots; in a
// local_sgd job a chunk has one array, which is that of its slot. There are two versions of each,
// and a copy that a snapshot holds. Of what goes out of a version, the values or, where they travel
// in 16 bits, those, there are more than two (ValueBuffersOf), so that a receiver which stands
// still in the middle of one does not hold up everybody else's next. Where pushes land is
// GradientStore's.
//
// What goes out lies in a SharedSlab, which workers on this host read; slots are in memory that
// nobody else sees. Pages that are never written cost nothing.
//
// Thread-compatible; after Create() nothing is allocated.
class ChunkStore {
 public:
  // Where a version lies.
  struct Version {
    int values = 0;  // of value_buffers()
    int slots = 0;   // 0 or 1

    friend bool operator==(const Version&, const Version&) = default;
  };
  static constexpr Version kHeld = {.values = -1, .slots = 2};  // the snapshot's copy

  // The plan is good.
  static int64_t BytesNeeded(const v1::JobPlan& plan, ShardIndex shard);
  // Values are zero. RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED".
  static absl::StatusOr<std::unique_ptr<ChunkStore>> Create(
      std::shared_ptr<const v1::JobPlan> plan, ShardIndex shard,
      std::shared_ptr<MemoryBudget::Reservation> reservation);
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  // Of the next generation of the job, where the shard has the same chunks and their values travel
  // alike; false, and nothing is changed, where it has not.
  bool PassOnTo(std::shared_ptr<const v1::JobPlan> plan);

  int size() const { return chunks_.size(); }
  NumbersBelow<LocalChunk> chunks() const { return chunks_.numbers(); }
  ChunkId id(LocalChunk index) const { return chunks_[index].id; }
  // Nothing: the plan has no such chunk, or on another shard.
  std::optional<LocalChunk> Find(ChunkId id) const;
  int64_t elements(LocalChunk index) const { return chunks_[index].elements; }
  int arrays() const { return arrays_; }
  // What array `array` of the chunk is in a checkpoint: 0 for values.
  int SlotOf(LocalChunk index, int array) const { return chunks_[index].first_slot + array; }
  // What goes out of this many versions has a place.
  int value_buffers() const { return value_buffers_; }
  const WireFormat& values_format(LocalChunk index) const { return chunks_[index].values_format; }

  // f32[elements], 64-byte aligned.
  float* Array(LocalChunk index, const Version& version, int array) const;
  absl::Span<const float> Values(LocalChunk index, const Version& version) const {
    return {Array(index, version, 0), static_cast<size_t>(elements(index))};
  }
  void Copy(LocalChunk index, const Version& from, const Version& to);

  // What goes out of a version: values_format(index).bytes, Array(index, version, 0) for f32.
  absl::Span<std::byte> WireValues(LocalChunk index, const Version& version) const;

  // Fills values with initial ones, slots with zeros.
  void Initialize(LocalChunk index, const Version& version);
  // Begins a restore, also after one that broke off.
  void BeginRestore();
  // One slice of the checkpoint; those of a chunk's slot come in order. DATA_LOSS on a checksum
  // mismatch, INVALID_ARGUMENT for a slice that does not belong here.
  absl::Status RestoreSlice(const v1::ShardSlice& slice, const Version& version);
  // DATA_LOSS naming the first chunk that is not complete.
  absl::Status FinishRestore() const;

  size_t bytes() const { return outgoing_->memory().size() + slab_->memory().size(); }
  // What WireValues() are in, and what everything else is in.
  absl::Span<std::byte> outgoing() const { return outgoing_->memory(); }
  const std::shared_ptr<Slab>& slab() const { return slab_; }

 private:
  struct Chunk {
    ChunkId id{};
    int first_slot = 0;
    int64_t elements = 0;
    WireFormat values_format;
    int64_t stride = 0;           // bytes from one array to the next
    int64_t outgoing_stride = 0;  // of what goes out of a version
    int64_t bytes = 0;            // of all but that
    std::byte* memory = nullptr;
    std::byte* outgoing = nullptr;

    // The values of a version go out as they are.
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
  NumberedVector<ChunkId, LocalChunk> index_of_;  // kElsewhere: of another shard
  std::vector<int64_t> restored_bytes_;           // [chunk, array]
};

}  // namespace muster
