// Chooses the ranks that contribute to a step of a job with backup workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "lib/plan/numbers.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Belongs to shard 0, where a ShardAssembly receives the messages. Every shard with gradients
// reports the ranks that have pushed all its chunks of the step, and reports again when there are
// more. A message is a RankSet.
//
// A rank is complete when all these shards have reported it. The step closes with the ranks that
// are complete first. Their number is the number of workers minus sync.backup_workers. Ranks that
// become complete with the same message are taken in ascending order.
// Thread-compatible. Nothing is allocated after construction.
class StepClosing {
 public:
  // `shards` tells which shards have gradients.
  StepClosing(const v1::JobPlan& plan, const NumberedVector<ShardIndex, bool>& shards);

  // The step that is being gathered; plan.first_step at the start.
  int64_t step() const { return step_; }
  // True if enough ranks are complete.
  bool can_close() const { return static_cast<int>(order_.size()) >= wanted_; }

  // The memory for every shard's message. Empty for a shard without gradients.
  NumberedVector<ShardIndex, absl::Span<std::byte>> places();
  // Returns whether a message about `step` may be received. A step that is not open yet is refused.
  // A message about a closed step is accepted and changes nothing.
  bool Wants(int64_t step) const { return step <= step_; }
  // Records that the message of `shard` about `step` is in its place.
  void Accept(ShardIndex shard, int64_t step);

  // Closes the step, returns its ranks as a RankSet, and begins the next step. Requires:
  // can_close(). The result is valid until the next call.
  absl::Span<const uint64_t> Close();

 private:
  struct Part {
    bool awaited = false;
    std::vector<uint64_t> message;
    std::vector<uint64_t> arrived;  // for this step
  };

  const int ranks_;
  const int wanted_;
  int64_t step_;
  NumberedVector<ShardIndex, Part> parts_;
  std::vector<uint64_t> complete_;  // ranks that all shards have
  std::vector<Rank> order_;         // these ranks in the order in which they became complete
  std::vector<uint64_t> set_;
};

}  // namespace muster
