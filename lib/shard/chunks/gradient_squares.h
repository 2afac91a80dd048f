// Gathers what all shards of a job have summed over their chunks in one step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "lib/plan/numbers.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Belongs to shard 0, where a ShardAssembly places the messages. A shard's part of a step is one
// message: `sums_per_chunk` f64 for each of its chunks with gradients (ChunksWithGradients()).
// Totals are taken chunk by chunk in the plan's order, so they do not depend on how chunks are
// spread over shards. Thread-compatible; after construction nothing is allocated.
class GradientSquares {
 public:
  explicit GradientSquares(const v1::JobPlan& plan, int sums_per_chunk = 1);

  // Of one shard: all but those of frozen parameters.
  static NumberedVector<TrainedChunk, ChunkId> ChunksWithGradients(const v1::JobPlan& plan,
                                                                   ShardIndex shard);

  // Whose parts are being gathered, or were last.
  int64_t step() const { return step_; }
  // Where the message of every shard lies; empty for one without gradients, which has no
  // part.
  NumberedVector<ShardIndex, absl::Span<std::byte>> places();

  // Gathers those of `step` from here on; none before the first call, and none that is incomplete.
  void Await(int64_t step);
  // Whether the message of `shard` about `step` is missing.
  bool Wants(int64_t step, ShardIndex shard) const;
  // It is in its place. True when it was the last one that was missing.
  bool Accept(ShardIndex shard);

  // Once all parts are in.
  bool complete() const { return parts_missing_ == 0; }
  // A chunk's, 0 for one without gradients.
  double Sum(ChunkId chunk, int which = 0) const;
  // Over all chunks.
  double Total(int which = 0) const;

 private:
  enum class PartState : uint8_t { kNone, kAwaited, kIn };  // kNone: has no part
  struct Part {
    PartState state = PartState::kNone;
    size_t first = 0;  // double of its message
    size_t bytes = 0;
  };
  static constexpr size_t kNowhere = -1;

  NumberedVector<ShardIndex, Part> parts_;
  std::vector<double> messages_;
  NumberedVector<ChunkId, size_t> place_of_chunk_;  // in messages_
  int64_t step_ = 0;
  int parts_missing_ = 0;
};

}  // namespace muster
