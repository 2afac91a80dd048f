// The parameter server's whole side of the data plane, without a thread: a transport, and at most
// one shard for every session. In a job with replication every shard and replica has its own
// session.
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

// A link identifies its peer: when it was opened, the peer proved to be a member of the job. A peer
// that sends a message that its role may not send is cut off. Messages that contradict the plan are
// counted and dropped; a greeted worker is told why (REFUSED). Every field is checked before memory
// is touched. The death of a worker is only a warning: the coordinator notices it by its lease.
//
// Called on one thread. In the steady state of training a turn takes no lock of ours and allocates
// nothing (shard_thread_hot_path_test).
class ShardLoop : private MessageReceiver {
 public:
  using Clock = JobLinks::Clock;

  // `metrics` and `counts` must outlive the loop; `counts` belongs to this loop alone. Peers that
  // have not left a shard `release_wait` after its release are disconnected, which ends their
  // transfers.
  ShardLoop(std::unique_ptr<Transport> transport, PsMetrics* metrics, ShardCounts* counts,
            absl::Duration release_wait);
  // Destroys the transport, then every shard; each listener is told.
  ~ShardLoop() override;

  Transport& transport() { return *transport_; }

  // Handles received messages. Copies a chunk for a snapshot if there are none, and at the latest
  // after 16 turns. Returns the number of events; if 0, call transport().Wait() next. Calls `clock`
  // only while a snapshot is written or an end is awaited, so it costs nothing in normal training.
  int Turn(absl::FunctionRef<Clock::time_point()> clock);

  // ---- commands; those for an unknown shard are ignored

  // Installs a shard. `listener` and `progress` must outlive it. Releases the job's shard of an
  // earlier generation. If both plans have the same token, links pass on to this generation, and a
  // worker follows when it says HELLO for it. The listener gets FAILED_PRECONDITION if this
  // generation or a later one is installed.
  void Install(std::unique_ptr<ParameterShard> shard, ShardListener* listener,
               ShardProgress* progress);
  void StartJob(uint64_t job, uint32_t generation, int64_t total_steps);
  void TakeSnapshot(uint64_t job, uint32_t generation, uint64_t id, int64_t step);
  void SnapshotWritten(uint64_t job, uint32_t generation, uint64_t id, int64_t step);
  // Stops the shard at its current version and disconnects all peers, so that none can delay its
  // end. The listener gets the shard as soon as the transport does not use its memory any more.
  void Halt(uint64_t job, uint32_t generation);
  // Drops the shard at once. Its memory is free as soon as the transport does not use it any more.
  // Peers stay connected until they leave or `release_wait` has passed, and are told nothing. They
  // are being released too, perhaps later, and would take an earlier end of the link for a death.
  void Release(uint64_t job, uint32_t generation);

 private:
  using Link = JobLinks::Link;
  struct UnplacedMessage {
    PeerId from;
    WireHeader header;
    RefusalReason refusal;  // kNone: a repeated or late push
  };

  bool CopyForSnapshot();
  void ConnectToFirstShard(InstalledShard& installed);
  void ConnectToReplica(InstalledShard& installed);
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
  bool PlaceEmptyPush(const Link& link, const WireHeader& header);
  void ReceivedPush(const Link& link, const WireHeader& header, absl::Span<const std::byte> payload,
                    PayloadLease lease);
  void ReceivedFetch(const Link& link, const WireHeader& header);
  absl::Span<std::byte> PlaceReport(const Link& link, const WireHeader& header);
  void ReceivedReport(const Link& link, const WireHeader& header,
                      absl::Span<const std::byte> payload);
  void ReceivedDecision(const Link& link, const WireHeader& header,
                        absl::Span<const std::byte> payload);
  void ReceivedFromReplica(const Link& link, const WireHeader& header);
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
  std::vector<std::unique_ptr<JobLinks>> jobs_;  // must outlive the shards
  std::vector<std::unique_ptr<InstalledShard>> shards_;
  size_t copied_last_ = 0;  // index in shards_, of the last chunk copied
  int busy_turns_ = 0;      // since the last look for a copy
  JobLinks::Index links_;
  std::vector<PeerId> breaches_;  // cut off after Progress(), which uses their links
  std::vector<UnplacedMessage>
      unplaced_;  // answered after Progress(): PlacePayload() must not send
};

}  // namespace muster
