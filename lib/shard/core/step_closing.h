// Agrees which ranks a step of a job with backup workers is made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "lib/plan/numbers.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Belongs to shard 0, where a ShardAssembly places the messages. Every shard with gradients says
// which ranks' pushes of the step are all there, again whenever there are more. The step is closed
// with the first ranks that all shards have, all workers but sync.backup_workers; ranks that become
// complete by the same message count in ascending order. A message is the ranks as a RankSet.
// Thread-compatible; after construction nothing is allocated.
class StepClosing {
 public:
  // `shards`: which have gradients.
  StepClosing(const v1::JobPlan& plan, const NumberedVector<ShardIndex, bool>& shards);

  // That is being gathered; plan.first_step at first.
  int64_t step() const { return step_; }
  // All workers but the backup ones are complete.
  bool can_close() const { return static_cast<int>(order_.size()) >= wanted_; }

  // Where the message of every shard lies; empty for one without gradients.
  NumberedVector<ShardIndex, absl::Span<std::byte>> places();
  // Whether a message about `step` may be placed: not about one that is not open yet. One about a
  // step that was closed meanwhile changes nothing.
  bool Wants(int64_t step) const { return step <= step_; }
  // The message of `shard`, about that step, is in its place.
  void Accept(ShardIndex shard, int64_t step);

  // The ranks of the step, as a RankSet, once it can be closed; the next step begins. Valid until
  // the next call.
  absl::Span<const uint64_t> Close();

 private:
  struct Part {
    bool awaited = false;
    std::vector<uint64_t> message;
    std::vector<uint64_t> arrived;  // of the step
  };

  const int ranks_;
  const int wanted_;
  int64_t step_;
  NumberedVector<ShardIndex, Part> parts_;
  std::vector<uint64_t> complete_;  // ranks that all shards have
  std::vector<Rank> order_;         // the same in the order in which they became so
  std::vector<uint64_t> set_;
};

}  // namespace muster
