// The services of the thread that runs a shard, and the snapshots and verdicts that a shard hands
// to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/optimizer/optimizer.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// A shard's values and slots at one version. Keeps its memory alive. The content does not change
// until SnapshotWritten() is called.
struct ShardSnapshot {
  struct Piece {
    ChunkId chunk;
    int slot;  // 0: values
    absl::Span<const float> elements;
  };
  ShardIndex shard{};
  uint64_t id = 0;  // 0: periodic or final; else the request's id
  int64_t step = 0;
  v1::UpdateState update_state;
  std::vector<Piece> pieces;
  std::shared_ptr<const Slab> memory;
};

// The outcome of a judged step, see StepsAreJudged().
struct StepVerdict {
  int64_t step = 0;
  bool skipped = false;      // the gradient was not finite
  int64_t skips_in_row = 0;  // including this step
  float loss_scale = 0;      // for the next step; 0: the job has none
};

// The services of the thread that runs a shard. Called from inside the shard's methods.
class ShardOutput {
 public:
  virtual ~ShardOutput() = default;
  // Sends to the worker of that rank, like Transport::Send. Without a connection, `done` gets an
  // error at once.
  virtual void SendTo(Rank rank, const WireHeader& header, absl::Span<const std::byte> payload,
                      Transport::SendDone done) = 0;
  // Sends to another shard of the job, in the same way.
  virtual void SendToShard(ShardIndex shard, const WireHeader& header,
                           absl::Span<const std::byte> payload, Transport::SendDone done) = 0;
  // Sends to the shard's replica, in the same way.
  virtual void SendToReplica(const WireHeader& /*header*/, absl::Span<const std::byte> /*payload*/,
                             Transport::SendDone done) {
    done(absl::UnavailableError("the shard has no replica"));
  }
  // Called for every judged step, with the same arguments on every shard.
  virtual void StepJudged(const StepVerdict& verdict) = 0;
  // Called around every optimizer update of `elements` elements. UpdateBegins() decides how the
  // values are stored.
  virtual kernels::OutgoingStores UpdateBegins(int64_t elements) = 0;
  virtual void UpdateEnds(double sum_of_squares) = 0;
  // Called for every push that is an update of its own (ssp, asp), see StalenessGate.
  virtual void StalePushApplied(int64_t /*staleness*/) {}
  // Called when every chunk is held at the snapshot's step. The receiver must call
  // SnapshotWritten() later.
  virtual void SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) = 0;
  virtual void SnapshotDeclined(uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
                                const std::string& message) = 0;
};

}  // namespace muster
