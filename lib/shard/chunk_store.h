// The memory of one shard: values and optimizer slots of its chunks, and where pushes land.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/codec/codec.h"
#include "lib/shard/memory_budget.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Every chunk has three buffers of arrays: two versions and one that holds a snapshot. Array 0 are
// the values, the next ones the optimizer's slots; in a local_sgd job a chunk has one array, which
// is that of its slot. Beside them lie a gradient per rank, the bytes of an encoded push per rank,
// and, where values travel in 16 bits, what goes out of each version. Pages that are never written
// cost nothing.
//
// Chunks are numbered from 0 in the plan's order. Thread-compatible; after Create() nothing is
// allocated.
class ChunkStore {
 public:
  static constexpr int kHeldBuffer = 2;  // beside the two versions

  // The plan is good.
  static int64_t BytesNeeded(const v1::JobPlan& plan, int shard);
  // Values are zero. RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED".
  static absl::StatusOr<std::unique_ptr<ChunkStore>> Create(
      std::shared_ptr<const v1::JobPlan> plan, int shard,
      std::shared_ptr<MemoryBudget::Reservation> reservation);
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  int size() const { return static_cast<int>(chunks_.size()); }
  int id(int index) const { return chunks_[index].id; }  // in the plan
  // -1: of another shard.
  int Find(int64_t id) const;
  int64_t elements(int index) const { return chunks_[index].elements; }
  int arrays() const { return arrays_; }
  // What array `array` of the chunk is in a checkpoint: 0 for values.
  int SlotOf(int index, int array) const { return chunks_[index].first_slot + array; }
  const WireFormat& push_format(int index) const { return chunks_[index].push_format; }
  const WireFormat& values_format(int index) const { return chunks_[index].values_format; }

  // f32[elements], 64-byte aligned.
  float* Array(int index, int buffer, int array) const;
  absl::Span<const float> Values(int index, int buffer) const {
    return {Array(index, buffer, 0), static_cast<size_t>(elements(index))};
  }
  void CopyBuffer(int index, int from, int to);

  // f32[elements], the shard's own copy of a rank's gradient.
  absl::Span<float> Gradient(int index, int rank) const;
  // Where the payload of a push lands: push_format(index).bytes. For an f32 push that is
  // Gradient(), for one of 16 bits its second half.
  absl::Span<std::byte> PushMemory(int index, int rank) const;
  // What goes out of a version: values_format(index).bytes, Array(index, buffer, 0) for f32.
  absl::Span<std::byte> WireValues(int index, int buffer) const;

  // Fills values with initial ones, slots with zeros.
  void Initialize(int index, int buffer);
  // Begins a restore, also after one that broke off.
  void BeginRestore();
  // One slice of the checkpoint; those of a chunk's slot come in order. DATA_LOSS on a checksum
  // mismatch, INVALID_ARGUMENT for a slice that does not belong here.
  absl::Status RestoreSlice(const v1::ShardSlice& slice, int buffer);
  // DATA_LOSS naming the first chunk that is not complete.
  absl::Status FinishRestore() const;

  const std::shared_ptr<Slab>& slab() const { return slab_; }

 private:
  struct Chunk {
    int id = 0;
    int first_slot = 0;
    int64_t elements = 0;
    WireFormat push_format;
    WireFormat values_format;
    int64_t stride = 0;          // bytes from one array to the next
    int64_t payload_stride = 0;  // of encoded pushes; 0: not encoded
    int64_t wire_stride = 0;     // of values that go out in 16 bits; 0: they go out as they are
    int64_t bytes = 0;           // of all
    std::byte* memory = nullptr;
  };

  ChunkStore(std::shared_ptr<const v1::JobPlan> plan, int shard, std::shared_ptr<Slab> slab);

  static int ArraysOf(const v1::JobPlan& plan);
  static Chunk Lay(const v1::JobPlan& plan, int id);

  const std::shared_ptr<const v1::JobPlan> plan_;
  const int shard_;
  const std::shared_ptr<Slab> slab_;
  const int arrays_;
  std::vector<Chunk> chunks_;
  std::vector<int32_t> index_of_;        // by the plan's chunk id; -1: of another shard
  std::vector<int64_t> restored_bytes_;  // [chunk, array]
};

}  // namespace muster
