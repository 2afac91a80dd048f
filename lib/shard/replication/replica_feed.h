// Sends a shard's state and updates to its replica.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/types/span.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/payload_tickets.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// A STATE message names an array of a chunk; array 0 holds the values. This number names the
// shard's update state instead.
inline constexpr int kUpdateStateArray = -1;

// If the replica has nothing yet, the feed first sends every array of every chunk at the plan's
// first step (STATE). Then it sends the sum of every update (PUSH). A sum stays in its memory until
// it has been sent, so each chunk has at most one sum under way.
//
// Thread-compatible. Nothing is allocated after construction. Callbacks run inside the methods of
// this class and inside the `done` of its messages.
class ReplicaFeed {
 public:
  using Send = std::function<void(const WireHeader& header, absl::Span<const std::byte> payload,
                                  Transport::SendDone done)>;
  // Requires: the shard has a replica, and `chunks` are its chunks. `sent` is called when memory of
  // the chunk is free again.
  ReplicaFeed(const v1::JobPlan& plan, ShardIndex shard, NumberedVector<LocalChunk, ChunkId> chunks,
              Send send, std::function<void(LocalChunk)> sent);

  // ---- initial state

  // True if the replica holds the plan's first step and needs no state.
  bool is_filled() const { return is_filled_; }
  // Sends one array of a chunk. Called once per array, after the replica connected and before
  // Connected(), unless is_filled().
  void SendArray(LocalChunk chunk, int array, absl::Span<const float> elements);
  void SendUpdateState(const v1::UpdateState& state);
  // Sums may be sent from now on.
  void Connected();

  // ---- sums

  // The sum of an update, and how the shard applied it, so that the replica does the same.
  struct Sum {
    int64_t step = 0;
    absl::Span<const float> elements;  // empty: no rank had a gradient
    bool skipped = false;              // by the verdict on the step
    double factor = 1;                 // applied to the sum
    // The learning rate of a job with a program, which then has no trust ratios; else the trust
    // ratio.
    double rate_or_trust = 1;
  };
  // Sends `sum`. Requires: !is_forwarding(chunk).
  void Forward(LocalChunk chunk, const Sum& sum);
  bool is_forwarding(LocalChunk chunk) const { return chunks_[chunk].sum != SumState::kNone; }
  // Returns whether an array of the chunk is being sent.
  bool is_sending_state(LocalChunk chunk) const { return chunks_[chunk].arrays_sending > 0; }

  // True if no payload is being sent.
  bool idle() const { return tickets_.all_back(); }

 private:
  using Tickets = PayloadTickets<ReplicaFeed>;
  enum class SumState : uint8_t { kNone, kWaiting, kSending };
  struct Chunk {
    ChunkId id{};
    int arrays_sending = 0;
    SumState sum = SumState::kNone;
    Sum next;
  };

  void SendSum(LocalChunk chunk);

  const WireHeader header_;  // the fields that all messages share
  const Send send_;
  const std::function<void(LocalChunk)> sent_;
  const bool is_filled_;
  bool connected_ = false;
  Tickets tickets_{this};  // declared first: it outlives the tickets below
  NumberedVector<LocalChunk, Chunk> chunks_;
  std::array<double, 3> update_state_ = {};  // the payload of SendUpdateState()
};

}  // namespace muster
