// Gathers the sums that all shards of a job compute over their chunks in one step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "lib/plan/numbers.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Belongs to shard 0, where a ShardAssembly receives the messages. A shard's part of a step is one
// message: `sums_per_chunk` f64 for each of its chunks with gradients (ChunksWithGradients()).
// Totals are added chunk by chunk in the plan's order, so they do not depend on how chunks are
// spread over shards. Thread-compatible. Nothing is allocated after construction.
class GradientSquares {
 public:
  explicit GradientSquares(const v1::JobPlan& plan, int sums_per_chunk = 1);

  // Returns the shard's chunks, without those of frozen parameters.
  static NumberedVector<TrainedChunk, ChunkId> ChunksWithGradients(const v1::JobPlan& plan,
                                                                   ShardIndex shard);

  // The step that is being gathered, or that was gathered last.
  int64_t step() const { return step_; }
  // The memory for every shard's message. Empty for a shard without gradients, which sends no part.
  NumberedVector<ShardIndex, absl::Span<std::byte>> places();

  // Starts to gather the parts of `step`. Requires: complete(). Nothing is awaited before the first
  // call.
  void Await(int64_t step);
  // Returns whether the message of `shard` about `step` is missing.
  bool Wants(int64_t step, ShardIndex shard) const;
  // Records that the shard's message is in its place. Returns true if it was the last missing one.
  bool Accept(ShardIndex shard);

  // True if no part is missing.
  bool complete() const { return parts_missing_ == 0; }
  // Returns the sum of one chunk, or 0 for a chunk without gradients. Requires: complete().
  double Sum(ChunkId chunk, int which = 0) const;
  // Returns the sum over all chunks. Requires: complete().
  double Total(int which = 0) const;

 private:
  enum class PartState : uint8_t { kNone, kAwaited, kIn };  // kNone: the shard sends no part
  struct Part {
    PartState state = PartState::kNone;
    size_t first = 0;  // index in messages_
    size_t bytes = 0;
  };
  static constexpr size_t kNowhere = -1;

  NumberedVector<ShardIndex, Part> parts_;
  std::vector<double> messages_;
  NumberedVector<ChunkId, size_t> place_of_chunk_;  // index in messages_
  int64_t step_ = 0;
  int parts_missing_ = 0;
};

}  // namespace muster
