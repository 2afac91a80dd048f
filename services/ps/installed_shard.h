// A shard that is installed on its shard thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/optimizer/optimizer.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/telemetry/trace.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/ps/gate_wait.h"
#include "services/ps/job_links.h"
#include "services/ps/ps_metrics.h"
#include "services/ps/shard_listener.h"
#include "services/ps/update_timer.h"

namespace muster {

// A shard with everything that the plan of its generation fixes: which connected peer has which
// seat, where the shard's memory is registered, and which listener is told. A seat is the rank of a
// worker, the number of another shard, or the shard's replica. Sends the shard's messages to the
// peer in the seat, and counts them.
//
// Called on the transport's thread. Destroyed when the transport no longer uses the shard's memory:
// after the transport, or when shard().idle().
class InstalledShard : public ShardOutput {
 public:
  using Clock = JobLinks::Clock;
  using Registrations = std::vector<std::unique_ptr<Transport::MemoryRegistration>>;

  // The objects shared by all shards of a thread. All except the transport must outlive the shard.
  struct Environment {
    Transport* transport;
    PsMetrics* metrics;
    ShardCounts* counts;
  };

  // `registrations` are of the shard's memory. `listener`, `progress` and `links` must outlive this
  // object.
  InstalledShard(const Environment& environment, std::unique_ptr<ParameterShard> shard,
                 ShardListener* listener, ShardProgress* progress, Registrations registrations,
                 JobLinks* links);
  ~InstalledShard() override;  // gives the shard to the listener

  ParameterShard& shard() { return *shard_; }
  ShardListener& listener() { return *listener_; }
  JobLinks& links() const { return *links_; }
  const v1::JobPlan& plan() const { return shard_->plan(); }
  ShardIndex number() const { return shard_->shard(); }
  bool Is(uint64_t job, uint32_t generation) const {
    return plan().job_number() == job && plan().generation() == generation;
  }

  // Ends the shard's work: it takes and sends nothing more, and waits to be idle.
  void Retire();
  bool retired() const { return retired_; }
  JobLinks::Patience& patience() { return patience_; }  // with the peers that delay its end

  // Counts a gradient of `bytes` bytes. The header's rank is one of this shard's generation. Called
  // before the shard gets the gradient.
  void CountPush(const WireHeader& header, size_t bytes);

  // Traces a push while the shard handles it.
  class PushSpan {
   public:
    PushSpan(InstalledShard* shard, const WireHeader& header);
    ~PushSpan() { shard_->pushed_step_ = -1; }
    PushSpan(const PushSpan&) = delete;
    PushSpan& operator=(const PushSpan&) = delete;

   private:
    InstalledShard* const shard_;
    const TraceSpan span_;
  };

  // `index` is the rank of a worker, the number of another shard, or 0 for the replica.
  struct Seat {
    LinkRole role;
    uint32_t index;
  };
  // Returns whether a member with this seat connects to the shard.
  bool HasSeat(const Seat& seat) const;
  // Returns the peer in the seat, or kNone.
  PeerId PeerAt(const Seat& seat) const;
  // Gives `peer` the seat. Requires: the seat is empty.
  void Take(const Seat& seat, PeerId peer);
  // Called before `peer` is disconnected: nothing is sent to it any more. Returns the seat that it
  // had.
  std::optional<Seat> Leave(PeerId peer);
  // Called after the peer of the seat was disconnected: nothing under way from it will arrive.
  void Lost(const Seat& seat);
  // The peers that have seats.
  struct Seated {
    PeerId peer;
    std::string member;
  };
  std::vector<Seated> seated() const;

  // ShardOutput.
  void SendTo(Rank rank, const WireHeader& header, absl::Span<const std::byte> payload,
              Transport::SendDone done) override;
  void SendToShard(ShardIndex shard, const WireHeader& header, absl::Span<const std::byte> payload,
                   Transport::SendDone done) override;
  void SendToReplica(const WireHeader& header, absl::Span<const std::byte> payload,
                     Transport::SendDone done) override;
  void StepJudged(const StepVerdict& verdict) override;
  kernels::OutgoingStores UpdateBegins(int64_t elements) override;
  void UpdateEnds(double sum_of_squares) override;
  void StalePushApplied(int64_t staleness) override;
  void SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) override;
  void SnapshotDeclined(uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
                        const std::string& message) override;

 private:
  std::vector<PeerId>& SeatsOf(LinkRole role);
  const std::vector<PeerId>& SeatsOf(LinkRole role) const {
    return const_cast<InstalledShard*>(this)->SeatsOf(role);
  }
  void PublishVersion();
  bool tracing() const { return recorder_.trace != nullptr && recorder_.trace->on(); }
  int64_t IdOf(int64_t chunk, int64_t step) const { return step * plan().chunks_size() + chunk; }
  void TraceArrival(const WireHeader& header);
  void TraceAnswer(const WireHeader& header);

  const Environment environment_;
  std::unique_ptr<ParameterShard> shard_;
  ShardListener* const listener_;
  const ShardListener::Recorder recorder_;
  ShardProgress* const progress_;
  Registrations registrations_;
  JobLinks* const links_;
  std::vector<PeerId> workers_;  // by rank
  std::vector<PeerId> shards_;   // of the same job; by number
  std::vector<PeerId> replica_ = {PeerId::kNone};
  bool retired_ = false;
  JobLinks::Patience patience_;
  const std::shared_ptr<JobCounts> counts_;
  GateWait gate_wait_;
  // The lowest number of a pushed chunk. This chunk is measured, because a worker has the model's
  // first chunk ready last.
  uint32_t gate_chunk_ = std::numeric_limits<uint32_t>::max();
  UpdateTimer update_timer_;
  int64_t late_pushes_ = 0;  // counted in the metrics so far
  // Used by the trace.
  std::vector<int64_t> gathering_;  // by chunk: the step whose gradients are awaited, or -1
  int64_t pushed_step_ = -1;        // step of the gradient that the shard handles now, or -1
  int64_t update_begin_ = -1;       // of the traced update under way, or -1
};

}  // namespace muster
