// A transport and, for every job, at most one shard, beside backups of others, without a thread:
// the parameter server's whole side of the data plane.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/ps/installed_shard.h"
#include "services/ps/job_links.h"
#include "services/ps/ps_metrics.h"
#include "services/ps/shard_listener.h"

namespace muster {

// Who speaks is known by the link, which was proved to be a member's of the job when it was opened;
// one who says what is not his to say is cut off. Messages that are not by the plan are counted and
// dropped; a greeted worker is told why (REFUSED). Every field is checked before memory is touched.
// A worker that dies is a warning: the coordinator notices by its lease.
//
// Of one thread. In the steady state of training a turn takes no lock of ours and allocates nothing
// (shard_thread_hot_path_test).
class ShardLoop : private MessageReceiver {
 public:
  using Clock = JobLinks::Clock;

  // `metrics` and `counts`, which are this loop's alone, outlive it. Peers that have not left a
  // shard `release_wait` after its release are disconnected, so that what they still send to it or
  // receive from it comes to its end.
  ShardLoop(std::unique_ptr<Transport> transport, PsMetrics* metrics, ShardCounts* counts,
            absl::Duration release_wait);
  // Destroys the transport, then every shard (each listener hears so).
  ~ShardLoop() override;

  Transport& transport() { return *transport_; }

  // Handles what has come, and where that is nothing copies a chunk for a snapshot; returns how
  // much was done. After nothing, transport().Wait(). `clock` is asked where a snapshot's write or
  // somebody's end is waited for: while all train nobody wants to know.
  int Turn(absl::FunctionRef<Clock::time_point()> clock);

  // ---- commands. Those for a shard that is not there are ignored.

  // `listener` and `progress` outlive the shard. A shard of an earlier generation of the job is
  // released; where both plans have the same token its links pass on to this one, and a worker
  // comes along when he says HELLO of it. FAILED_PRECONDITION where this generation or a later one
  // is installed.
  void Install(std::unique_ptr<ParameterShard> shard, ShardListener* listener,
               ShardProgress* progress);
  void StartJob(uint64_t job, uint32_t generation, int64_t total_steps);
  void TakeSnapshot(uint64_t job, uint32_t generation, uint64_t id, int64_t step);
  void SnapshotWritten(uint64_t job, uint32_t generation, uint64_t id, int64_t step);
  // Stops the shard where it is and disconnects everybody, so that nothing holds up its end: the
  // listener gets it as soon as the transport does not use its memory any more.
  void Halt(uint64_t job, uint32_t generation);
  // Drops the shard at once; its memory is free as soon as the transport does not use it any more.
  // Who is connected stays so until he leaves or `release_wait` is over, and hears nothing: he is
  // being released as well, perhaps later, and would take an end of the link for a death.
  void Release(uint64_t job, uint32_t generation);

 private:
  using Link = JobLinks::Link;
  struct UnplacedMessage {
    PeerId from;
    WireHeader header;
    RefusalReason refusal;  // kNone: a repeat
  };

  bool CopyForSnapshot();
  void ConnectToFirstShard(InstalledShard& installed);
  void ConnectToBackup(InstalledShard& installed);
  void DestroyReleased(absl::FunctionRef<Clock::time_point()> clock);
  void LeaveReleased(absl::FunctionRef<Clock::time_point()> clock);
  JobLinks* FindLinks(uint64_t job);
  JobLinks& LinksFor(const v1::JobPlan& plan, const SessionToken& token);

  void PeerJoined(PeerId peer, const LinkIdentity& who) override;
  PayloadPlace PlacePayload(PeerId from, const WireHeader& header) override;
  void Received(PeerId from, const WireHeader& header, absl::Span<const std::byte> payload,
                PayloadLease lease) override;
  void PayloadLost(PeerId from, const WireHeader& header) override;
  void PeerLost(PeerId peer, const absl::Status& why) override;

  InstalledShard* Find(uint64_t job, uint32_t generation);
  Link* SenderOf(PeerId from, const WireHeader& header);
  void ReceivedPush(const Link& link, const WireHeader& header, absl::Span<const std::byte> payload,
                    PayloadLease lease);
  void ReceivedFetch(const Link& link, const WireHeader& header);
  absl::Span<std::byte> PlaceReport(const Link& link, const WireHeader& header);
  void ReceivedReport(const Link& link, const WireHeader& header,
                      absl::Span<const std::byte> payload);
  void ReceivedDecision(const Link& link, const WireHeader& header,
                        absl::Span<const std::byte> payload);
  void ReceivedFromBackup(const Link& link, const WireHeader& header);
  void ReceivedHeld(const Link& link, const WireHeader& header);
  void Greet(Link& link, const WireHeader& header);
  void AnswerUnplaced();
  void CutOffBreaches();
  void Refuse(const Link& link, const WireHeader& header, RefusalReason reason);
  void SendRefusal(const Link& link, const WireHeader& header, RefusalReason reason);

  PsMetrics* const metrics_;
  ShardCounts& counts_;  // of this thread
  const std::chrono::nanoseconds release_wait_;
  std::unique_ptr<Transport> transport_;
  std::vector<std::unique_ptr<JobLinks>> jobs_;  // outlive the shards
  std::vector<std::unique_ptr<InstalledShard>> shards_;
  size_t copied_last_ = 0;  // of shards_, for a snapshot
  int busy_turns_ = 0;      // since one was looked for
  JobLinks::Index links_;
  std::vector<PeerId> breaches_;  // to be cut off after Progress(), which is using them
  std::vector<UnplacedMessage>
      unplaced_;  // answered after Progress(): PlacePayload() must not send
};

}  // namespace muster
