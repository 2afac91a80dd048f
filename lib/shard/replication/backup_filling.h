// How a backup that has nothing gets what its shard has.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "lib/shard/chunks/chunk_store.h"
#include "lib/shard/chunks/payload_tickets.h"
#include "lib/transport/core/wire.h"
#include "proto/muster/v1/checkpoint.pb.h"

namespace muster {

// The receiver of BackupFeed's STATE messages: every array of every chunk, and the update state,
// once each, in any order. They are received where they belong. Thread-compatible; after
// construction nothing is allocated.
class BackupFilling {
 public:
  // Fills version ChunkStore::Version() of the store, which outlives this; of version `first_step`
  // of the job.
  BackupFilling(const ChunkStore& store, int64_t first_step);

  // Where a message is to be placed; empty where it is not wanted. Then that it is there, or will
  // not come.
  absl::Span<std::byte> Place(const WireHeader& header);
  void Arrived(const WireHeader& header);
  void Lost(const WireHeader& header);
  // None that is under way will.
  void AllLost();

  bool complete() const { return missing_ == 0; }
  // Once complete.
  v1::UpdateState update_state() const;
  // No payload is being received.
  bool idle() const { return tickets_.all_back(); }

 private:
  using Tickets = PayloadTickets<BackupFilling>;
  struct Piece {
    absl::Span<std::byte> memory;
    bool is_in = false;
    Tickets::Ticket receiving;
  };
  // Null: there is no such piece.
  Piece* Find(const WireHeader& header);

  const ChunkStore& store_;
  const int64_t first_step_;
  Tickets tickets_{this};      // outlives who holds them below
  std::vector<Piece> pieces_;  // [chunk, array], then the update state
  size_t missing_;
  std::array<double, 3> update_state_ = {};
};

}  // namespace muster
