// A thread that owns a transport and, for every job, at most one shard, beside backups of others: a
// chunk's whole life is on one thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/concurrency/mailbox.h"
#include "lib/limits/limits.h"
#include "lib/shard/parameter_shard.h"
#include "lib/transport/session.h"
#include "lib/transport/transport.h"
#include "lib/transport/wire.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/ps/installed_shard.h"
#include "services/ps/job_links.h"
#include "services/ps/ps_metrics.h"
#include "services/ps/shard_listener.h"

namespace muster {

// The loop: commands, Progress(), Wait(). Commands come through a mailbox that is looked into only
// when something was posted; messages are handled from inside Progress(). In the steady state of
// training the thread takes no lock of ours and allocates nothing (shard_thread_hot_path_test).
//
// Who speaks is known by the link, which was proved to be a member's of the job when it was opened;
// one who says what is not his to say is cut off. Messages that are not by the plan are counted and
// dropped; a greeted worker is told why (REFUSED). Every field is checked before memory is touched.
// A worker that dies is a warning: the coordinator notices by its lease.
class ShardThread : private MessageReceiver {
 public:
  // Waits for the thread to have its transport; the factory's error otherwise. `metrics` outlives
  // the thread. Peers that have not left a shard `release_wait` after its release are disconnected,
  // so that what they still send to it or receive from it comes to its end.
  static absl::StatusOr<std::unique_ptr<ShardThread>> Start(
      TransportFactory factory, PsMetrics* metrics,
      absl::Duration release_wait = limits::kReleaseWaitMax);
  ~ShardThread() override;  // stops
  // Destroys the transport, then every shard (each listener hears so), and joins. From then on
  // commands are refused.
  void Stop();

  const std::string& address() const { return address_; }
  // While nobody is connected ("shm+tcp").
  const std::string& transport_name() const { return transport_name_; }

  // ---- commands, from any thread; carried out in order. Commands for a shard that is not there
  // are ignored.

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
  using Command = absl::AnyInvocable<void()>;

  ShardThread(TransportFactory factory, PsMetrics* metrics, absl::Duration release_wait);

  absl::Status AwaitTransport() ABSL_LOCKS_EXCLUDED(mu_);
  void Run(const TransportFactory& factory);
  absl::Status MakeTransport(const TransportFactory& factory) ABSL_LOCKS_EXCLUDED(mu_);
  void Serve();
  void Wake() ABSL_LOCKS_EXCLUDED(mu_);
  void RunCommands();
  void ForShard(uint64_t job, uint32_t generation,
                absl::AnyInvocable<void(InstalledShard&)> action);
  void Admit(std::unique_ptr<ParameterShard> shard, ShardListener* listener,
             ShardProgress* progress);
  void ConnectToFirstShard(InstalledShard& installed);
  void ConnectToBackup(InstalledShard& installed);
  void DestroyReleased();
  void LeaveReleased();
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
  std::string address_;
  std::string transport_name_;

  // The thread's own.
  std::unique_ptr<Transport> transport_;
  std::vector<std::unique_ptr<JobLinks>> jobs_;  // outlive the shards
  std::vector<std::unique_ptr<InstalledShard>> shards_;
  JobLinks::Index links_;
  std::vector<PeerId> breaches_;  // to be cut off after Progress(), which is using them
  std::vector<UnplacedMessage>
      unplaced_;  // answered after Progress(): PlacePayload() must not send

  std::atomic<bool> mail_ = false;  // spares the loop the mailbox's lock
  std::atomic<bool> stopping_ = false;
  absl::Mutex mu_;
  std::optional<absl::Status> made_ ABSL_GUARDED_BY(mu_);  // of MakeTransport()
  Transport* awake_ ABSL_GUARDED_BY(mu_) = nullptr;        // while there is one
  Mailbox<Command> mailbox_;
  std::jthread thread_;  // last: starts when everything else is there
};

}  // namespace muster
