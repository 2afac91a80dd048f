// Gathers the sums of squares of a step's gradient from all shards of a job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Belongs to shard 0. A shard's part of a step is one message: the session token, then f64 for each
// of its chunks in ascending order. The total is taken chunk by chunk in the plan's order, so it
// does not depend on how chunks are spread over shards. Thread-compatible; after construction
// nothing is allocated.
class GradientSquares {
 public:
  static constexpr size_t kTokenBytes = 16;
  explicit GradientSquares(const v1::JobPlan& plan);

  // Whose parts are being gathered; plan.first_step at first.
  int64_t step() const { return step_; }
  // Whether the shard has chunks, and so a part.
  bool Awaits(int shard) const { return parts_[shard].state != PartState::kNone; }

  // Where the message of `shard` for `step` is to be placed; empty where none is wanted: another
  // step, no such shard, another size, or a repeat.
  absl::Span<std::byte> Place(int64_t step, int shard, uint64_t bytes);
  // Placed, and neither accepted nor rejected yet.
  bool IsPlacing(int shard) const { return parts_[shard].state == PartState::kPlacing; }
  // What was placed is no such message, or will not arrive: it may come again.
  void Reject(int shard);
  // What was placed is the message. True when it was the last one that was missing.
  bool Accept(int shard);

  // Sum over all chunks, once all parts are in; the next step begins.
  double TakeTotal();

 private:
  enum class PartState : uint8_t { kNone, kAwaited, kPlacing, kIn };  // kNone: has no chunks
  struct Part {
    PartState state = PartState::kNone;
    size_t first = 0;  // double of its message
    size_t bytes = 0;
  };

  std::vector<Part> parts_;  // by shard
  std::vector<double> messages_;
  std::vector<size_t> place_of_chunk_;  // in messages_
  int64_t step_;
  int parts_missing_ = 0;
};

}  // namespace muster
