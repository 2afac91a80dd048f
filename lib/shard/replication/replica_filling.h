// Receives the state of a shard at a replica that has nothing yet.
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

// Receives ReplicaFeed's STATE messages: every array of every chunk and the update state, once
// each, in any order. Payloads are received directly into the store. Thread-compatible. Nothing is
// allocated after construction.
class ReplicaFilling {
 public:
  // Fills version ChunkStore::Version() of the store with version `first_step` of the job. The
  // store must outlive this object.
  ReplicaFilling(const ChunkStore& store, int64_t first_step);

  // Returns the place for the payload of a message, or an empty span if it is not wanted. Each
  // place is followed by Arrived() or Lost().
  absl::Span<std::byte> Place(const WireHeader& header);
  void Arrived(const WireHeader& header);
  void Lost(const WireHeader& header);
  // Records that no message under way will arrive.
  void AllLost();

  bool complete() const { return missing_ == 0; }
  // Requires: complete().
  v1::UpdateState update_state() const;
  // True if no payload is being received.
  bool idle() const { return tickets_.all_back(); }

 private:
  using Tickets = PayloadTickets<ReplicaFilling>;
  struct Piece {
    absl::Span<std::byte> memory;
    bool is_in = false;
    Tickets::Ticket receiving;
  };
  // Returns null if there is no such piece.
  Piece* Find(const WireHeader& header);

  const ChunkStore& store_;
  const int64_t first_step_;
  Tickets tickets_{this};      // declared first: it outlives the tickets below
  std::vector<Piece> pieces_;  // [chunk, array], then the update state
  size_t missing_;
  std::array<double, 3> update_state_ = {};
};

}  // namespace muster
