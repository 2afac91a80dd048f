// What a shard sends to its backup.
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

// STATE names an array of a chunk, of which 0 are the values; this is the shard's update state.
inline constexpr int kUpdateStateArray = -1;

// First, where the backup has nothing yet, every array of every chunk at the plan's first step
// (STATE), then the sum of every update (PUSH). A sum stays in its memory until it has gone out:
// of a chunk one at a time is under way.
//
// Thread-compatible; after construction nothing is allocated. Calls what it is given from inside
// its methods and from inside the `done` of its messages.
class BackupFeed {
 public:
  using Send = std::function<void(const WireHeader& header, absl::Span<const std::byte> payload,
                                  Transport::SendDone done)>;
  // Of a shard that has a backup, with these chunks. `sent`: memory of the chunk is free again.
  BackupFeed(const v1::JobPlan& plan, ShardIndex shard, NumberedVector<LocalChunk, ChunkId> chunks,
             Send send, std::function<void(LocalChunk)> sent);

  // ---- the beginning

  // The backup holds the first step: it needs no state.
  bool is_filled() const { return is_filled_; }
  // Once, when the backup is connected and before Connected(), where it needs them.
  void SendArray(LocalChunk chunk, int array, absl::Span<const float> elements);
  void SendUpdateState(const v1::UpdateState& state);
  // Sums may go out from here on.
  void Connected();

  // ---- sums

  // The sum of an update and how it became one, so that the backup does the same.
  struct Sum {
    int64_t step = 0;
    absl::Span<const float> elements;
    bool skipped = false;
    double factor = 1;  // on the sum
    double trust_ratio = 1;
  };
  // Not while the last one is under way.
  void Forward(LocalChunk chunk, const Sum& sum);
  bool is_forwarding(LocalChunk chunk) const { return chunks_[chunk].sum != SumState::kNone; }
  // Whether an array of the chunk is on its way.
  bool is_sending_state(LocalChunk chunk) const { return chunks_[chunk].arrays_sending > 0; }

  // No payload is being sent.
  bool idle() const { return tickets_.all_back(); }

 private:
  using Tickets = PayloadTickets<BackupFeed>;
  enum class SumState : uint8_t { kNone, kWaiting, kSending };
  struct Chunk {
    ChunkId id{};
    int arrays_sending = 0;
    SumState sum = SumState::kNone;
    Sum next;
  };

  void SendSum(LocalChunk chunk);

  const WireHeader header_;  // what all messages have in common
  const Send send_;
  const std::function<void(LocalChunk)> sent_;
  const bool is_filled_;
  bool connected_ = false;
  Tickets tickets_{this};  // outlives who holds them below
  NumberedVector<LocalChunk, Chunk> chunks_;
  std::array<double, 3> update_state_ = {};  // as it goes out
};

}  // namespace muster
