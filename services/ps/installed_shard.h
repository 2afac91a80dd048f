// A shard on its shard thread.
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

// A shard with all that the plan of its generation fixes: who of those who are connected has which
// seat (the rank of a worker, the number of another shard, its backup), where its memory is
// registered, and who hears of it. Sends what the shard has to say to whoever has the seat, and
// counts.
//
// Of the transport's thread. Destroyed when the transport does not use the shard's memory any more:
// after it, or when shard().idle().
class InstalledShard : public ShardOutput {
 public:
  using Clock = JobLinks::Clock;
  using Registrations = std::vector<std::unique_ptr<Transport::MemoryRegistration>>;

  // What it has in common with the others of its thread. All outlive it but the transport.
  struct Environment {
    Transport* transport;
    PsMetrics* metrics;
    ShardCounts* counts;
  };

  // `registrations` are of the shard's memory. `listener` and `progress` outlive this; so do
  // `links`.
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

  // Its life ends: it takes and says nothing more, and waits to be idle.
  void Retire();
  bool retired() const { return retired_; }
  JobLinks::Patience& patience() { return patience_; }  // with who holds up the end of its life

  // A gradient of so many bytes, in its sender's generation. To be called before the shard is told.
  void CountPush(const WireHeader& header, size_t bytes);

  // While the shard is told of a gradient: its part of a trace.
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

  // The rank of a worker, the number of another shard; the backup's, 0.
  struct Seat {
    LinkRole role;
    uint32_t index;
  };
  // The plan has such a member, who connects to this shard.
  bool HasSeat(const Seat& seat) const;
  // Who has the seat; kNone: nobody.
  PeerId PeerAt(const Seat& seat) const;
  // Gives `peer` a seat that nobody has.
  void Take(const Seat& seat, PeerId peer);
  // Before `peer` is disconnected: nothing is sent to him any more. Returns the seat that he had.
  std::optional<Seat> Leave(PeerId peer);
  // After who had the seat was disconnected: what was under way from him will not arrive.
  void Lost(const Seat& seat);
  // Who has seats.
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
  void SendToBackup(const WireHeader& header, absl::Span<const std::byte> payload,
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
  std::vector<PeerId> shards_;   // of the same job, those that it agrees with on every step
  std::vector<PeerId> backup_ = {PeerId::kNone};
  bool retired_ = false;
  JobLinks::Patience patience_;
  const std::shared_ptr<JobCounts> counts_;
  GateWait gate_wait_;
  // Of those that are pushed, the first of the model: it is the last that a worker has ready.
  uint32_t gate_chunk_ = std::numeric_limits<uint32_t>::max();
  UpdateTimer update_timer_;
  int64_t late_pushes_ = 0;  // counted in the metrics
  // In the trace.
  std::vector<int64_t> gathering_;  // by chunk: the step whose gradients are being awaited, or -1
  int64_t pushed_step_ = -1;        // of the gradient that the shard is being told of, or -1
  int64_t update_begin_ = -1;       // of the update under way; -1: it is not traced
};

}  // namespace muster
