// The memory into which pushes for the chunks of one shard are received: a gradient per rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/codec/codec.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/transport/core/shared_slab.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// The size of this store depends on the number of workers; the size of values and slots
// (ChunkStore) does not. Each chunk and rank has an f32 gradient and, if pushes use a codec, the
// bytes of one push. Frozen chunks have neither. A shard with a replica also has a sum of gradients
// per chunk, and sends it to the replica from there.
//
// Pages that are never written cost nothing, and most pushes are read in their sender's memory.
//
// Thread-compatible. Nothing is allocated after Create().
class GradientStore {
 public:
  // Returns the memory that Create() needs, in bytes. Requires: the plan is valid.
  static int64_t BytesNeeded(const v1::JobPlan& plan, ShardIndex shard);
  // The part of BytesNeeded() that does not depend on the number of workers.
  static int64_t SumBytesNeeded(const v1::JobPlan& plan, ShardIndex shard);
  // Returns RESOURCE_EXHAUSTED (reason "MEMORY_EXHAUSTED") if the memory cannot be allocated.
  static absl::StatusOr<std::unique_ptr<GradientStore>> Create(
      const v1::JobPlan& plan, ShardIndex shard,
      std::shared_ptr<MemoryBudget::Reservation> reservation);
  GradientStore(const GradientStore&) = delete;
  GradientStore& operator=(const GradientStore&) = delete;

  // The wire format of pushes for the chunk.
  const WireFormat& format(LocalChunk index) const { return chunks_[index].format; }
  // f32[elements], 64-byte aligned: the shard's own copy of a rank's gradient.
  absl::Span<float> Gradient(LocalChunk index, Rank rank) const;
  // The memory that the payload of a push is received into: format(index).bytes. For an f32 push
  // this is Gradient() itself, for a 16-bit push its second half.
  absl::Span<std::byte> PushMemory(LocalChunk index, Rank rank) const;

  // f32[elements], 64-byte aligned: the sum that is sent to the replica. Requires: the shard has a
  // replica.
  absl::Span<float> Sum(LocalChunk index) const;

  absl::Span<std::byte> memory() const { return slab_->memory(); }
  // Contains all Sum(). Empty without a replica.
  absl::Span<std::byte> sums() const { return sums_->memory(); }

 private:
  struct Chunk {
    int64_t elements = 0;
    WireFormat format;
    int64_t stride = 0;          // bytes from one rank's gradient to the next
    int64_t payload_stride = 0;  // of encoded pushes, which follow the gradients; 0: not encoded
    std::byte* memory = nullptr;
    std::byte* sum = nullptr;
  };

  GradientStore(const v1::JobPlan& plan, ShardIndex shard, std::shared_ptr<Slab> slab,
                std::shared_ptr<SharedSlab> sums);

  static Chunk Lay(const v1::JobPlan& plan, ChunkId id);

  const std::shared_ptr<Slab> slab_;
  const std::shared_ptr<SharedSlab> sums_;
  const int ranks_;
  NumberedVector<LocalChunk, Chunk> chunks_;
};

}  // namespace muster
