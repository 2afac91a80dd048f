// Where the pushes for the chunks of one shard land: a gradient of every rank.
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

// Its size follows the number of workers, that of the values and slots (ChunkStore) does not. For
// each chunk and rank there are an f32 gradient and, where pushes are encoded, the bytes of one
// push; a chunk that is frozen has none of this. Pages that are never written cost nothing: most
// pushes are read where their sender has them. A shard that has a backup sends it the sums of
// gradients, which have a place of their own.
//
// Thread-compatible; after Create() nothing is allocated.
class GradientStore {
 public:
  // The plan is good.
  static int64_t BytesNeeded(const v1::JobPlan& plan, ShardIndex shard);
  // Of it, what does not depend on the number of workers.
  static int64_t SumBytesNeeded(const v1::JobPlan& plan, ShardIndex shard);
  // RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED".
  static absl::StatusOr<std::unique_ptr<GradientStore>> Create(
      const v1::JobPlan& plan, ShardIndex shard,
      std::shared_ptr<MemoryBudget::Reservation> reservation);
  GradientStore(const GradientStore&) = delete;
  GradientStore& operator=(const GradientStore&) = delete;

  // Of pushes for the chunk.
  const WireFormat& format(LocalChunk index) const { return chunks_[index].format; }
  // f32[elements], 64-byte aligned: the shard's own copy of a rank's gradient.
  absl::Span<float> Gradient(LocalChunk index, Rank rank) const;
  // Where the payload of a push lands: format(index).bytes. For an f32 push that is Gradient(), for
  // one of 16 bits its second half.
  absl::Span<std::byte> PushMemory(LocalChunk index, Rank rank) const;

  // f32[elements], 64-byte aligned: the sum that is on its way to the backup. Of a shard that has
  // one.
  absl::Span<float> Sum(LocalChunk index) const;

  absl::Span<std::byte> memory() const { return slab_->memory(); }
  // What Sum() is in; empty without a backup.
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
