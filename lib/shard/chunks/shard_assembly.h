// How the shards of a job come to one decision: each reports to shard 0, which tells everybody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/types/span.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/payload_tickets.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// One shard's part in that: messages and the memory that they are in, not what they say. Of every
// shard at most one report is under way at a time. What shard 0 reports it hears itself, without a
// message.
//
// Thread-compatible; after construction nothing is allocated. What it calls, it calls from inside
// its methods and from inside the `done` of its messages.
class ShardAssembly {
 public:
  // As ShardOutput::SendToShard().
  using Send = std::function<void(ShardIndex shard, const WireHeader& header,
                                  absl::Span<const std::byte> payload, Transport::SendDone done)>;
  struct Options {
    MessageKind report = MessageKind::kSquares;
    MessageKind decision = MessageKind::kVerdict;
    // Of shard 0: where each shard's report is to lie; empty for those without gradients,
    // which report nothing and are told nothing.
    NumberedVector<ShardIndex, absl::Span<std::byte>> places;
    Send send;
    std::function<void(ShardIndex shard, int64_t step)>
        arrived;                             // of shard 0: a report is in its place
    std::function<void()> reported = [] {};  // the report's memory is free again
    std::function<void()> told = [] {};      // of shard 0: the decision's is
  };

  // Of shard `shard` of the plan.
  ShardAssembly(const v1::JobPlan& plan, ShardIndex shard, Options options);

  // ---- every shard

  // `report` stays as it is while reporting(). Not while another is under way.
  void Report(int64_t step, absl::Span<const std::byte> report);
  bool reporting() const { return reporting_; }

  // Names `memory` for a decision that comes with a payload, unless one is being received already:
  // then empty.
  absl::Span<std::byte> PlaceDecision(absl::Span<std::byte> memory);
  // It is there. False: it was given up before.
  bool DecisionArrived();
  void DecisionLost() { receiving_decision_.GiveBack(); }

  // ---- shard 0

  // Where the report of `shard` is to be placed; empty where none is wanted: no such shard, another
  // size, or one is being placed already.
  absl::Span<std::byte> Place(ShardIndex shard, uint64_t bytes);
  // It is there; ignored if it was given up before.
  void Arrived(ShardIndex shard, int64_t step);
  // It will not arrive, and may come again.
  void Lost(ShardIndex shard);

  // Tells all other shards with gradients. A payload stays as it is while telling().
  void Tell(int64_t step, double scalar, absl::Span<const std::byte> decision);
  bool telling() const { return telling_ > 0; }

  // ---- life

  // What is under way from `shard` will not arrive.
  void ShardLost(ShardIndex shard);
  // No message is being received and none sent.
  bool idle() const { return tickets_.all_back(); }

 private:
  using Tickets = PayloadTickets<ShardAssembly>;

  bool is_first() const { return header_.rank == static_cast<uint32_t>(kFirstShard); }
  WireHeader Header(MessageKind kind, int64_t step, size_t bytes) const;

  const Options options_;
  const WireHeader header_;  // what all messages of the shard have in common
  Tickets tickets_{this};    // outlives who holds them below
  NumberedVector<ShardIndex, Tickets::Ticket> receiving_;  // reports
  Tickets::Ticket receiving_decision_;
  bool reporting_ = false;
  int telling_ = 0;  // messages
};

}  // namespace muster
