// Carries the messages with which the shards of a job reach one decision: each shard reports to
// shard 0, which sends the decision to all others.
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

// One shard's part in this exchange. It handles the messages and the memory of their payloads, not
// their meaning. At most one report of each shard is under way at a time. Shard 0 takes its own
// report without a message.
//
// Thread-compatible. Nothing is allocated after construction. Callbacks run inside the methods of
// this class and inside the `done` of its messages.
class ShardAssembly {
 public:
  // Like ShardOutput::SendToShard().
  using Send = std::function<void(ShardIndex shard, const WireHeader& header,
                                  absl::Span<const std::byte> payload, Transport::SendDone done)>;
  struct Options {
    MessageKind report = MessageKind::kSquares;
    MessageKind decision = MessageKind::kVerdict;
    // Only for shard 0: the memory for each shard's report. Empty for a shard without gradients,
    // which neither reports nor gets the decision.
    NumberedVector<ShardIndex, absl::Span<std::byte>> places;
    Send send;
    std::function<void(ShardIndex shard, int64_t step)>
        arrived;                             // shard 0 only: a report is in its place
    std::function<void()> reported = [] {};  // the memory of the report is free again
    std::function<void()> told = [] {};  // shard 0 only: the memory of the decision is free again
  };

  // Creates the part of shard `shard` of the plan.
  ShardAssembly(const v1::JobPlan& plan, ShardIndex shard, Options options);

  // ---- every shard

  // Sends `report` to shard 0. Requires: !reporting(). `report` must not change while reporting().
  void Report(int64_t step, absl::Span<const std::byte> report);
  bool reporting() const { return reporting_; }

  // Returns `memory` as the place for a decision with a payload. Returns an empty span if a
  // decision is already being received.
  absl::Span<std::byte> PlaceDecision(absl::Span<std::byte> memory);
  // Records that the decision is in its place. Returns false if DecisionLost() or ShardLost() came
  // first.
  bool DecisionArrived();
  void DecisionLost() { receiving_decision_.GiveBack(); }

  // ---- shard 0

  // Returns the place for the report of `shard`. Returns an empty span if there is no such shard,
  // if the size is wrong, or if its report is already being received.
  absl::Span<std::byte> Place(ShardIndex shard, uint64_t bytes);
  // Records that the report is in its place. Does nothing if Lost() or ShardLost() came first.
  void Arrived(ShardIndex shard, int64_t step);
  // Records that the report will not arrive. The shard may send it again.
  void Lost(ShardIndex shard);

  // Sends the decision to all other shards with gradients. `decision` must not change while
  // telling().
  void Tell(int64_t step, double scalar, absl::Span<const std::byte> decision);
  bool telling() const { return telling_ > 0; }

  // ---- shutdown

  // Gives up all messages under way from `shard`.
  void ShardLost(ShardIndex shard);
  // True if no message is being received or sent.
  bool idle() const { return tickets_.all_back(); }

 private:
  using Tickets = PayloadTickets<ShardAssembly>;

  bool is_first() const { return header_.rank == static_cast<uint32_t>(kFirstShard); }
  WireHeader Header(MessageKind kind, int64_t step, size_t bytes) const;

  const Options options_;
  const WireHeader header_;  // the fields that all messages of the shard share
  Tickets tickets_{this};    // declared first: it outlives the tickets below
  NumberedVector<ShardIndex, Tickets::Ticket> receiving_;  // reports
  Tickets::Ticket receiving_decision_;
  bool reporting_ = false;
  int telling_ = 0;  // messages
};

}  // namespace muster
