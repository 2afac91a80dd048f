// The data plane over RDMA, with UCX active messages.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/transport/core/event_loop.h"
#include "lib/transport/core/fetch_turns.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/transport_backend.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "lib/transport/ucx/ucx_context.h"
#include "lib/transport/ucx/ucx_greeting.h"

struct ucp_context;
struct ucp_ep;
struct ucp_worker;

namespace muster {

struct UcxTransportOptions {
  using Networks = UcxNetworks;
  Networks networks = Networks::kRdmaOnly;
};

// Small payloads travel with their header, and the receiver copies them once. Payloads of 16 KiB or
// more wait at the sender until PlacePayload has returned memory and the sender has its turn. UCX
// then writes them directly to that memory. No memory of payload size is allocated.
//
// Every UCX_* variable that is set takes precedence over the settings here, except a UCX_TLS that
// names other networks than the options. Endpoints detect a dead peer, which excludes UCX's shared
// memory.
//
// Device memory (of a GPU) may be sent, placed and registered only if Describe() sets
// device_memory. Otherwise the caller must copy it through host memory.
//
// The receiver's calls, except PlacePayload, and `done` run outside UCX. They may call everything
// here except Progress() and the destructor. PlacePayload only returns memory, and Wait() may call
// it too. Disconnect() blocks until none of the peer's payloads is being written to memory here.
//
// Disconnect() still sends what is done, and gives unfinished sends 0.2 s; then they end with
// CANCELLED. Sends that wait until the peer accepts the link end with CANCELLED in the next
// Progress(). The destructor does the same for every peer and calls no callbacks.
//
// Peers are authenticated above UCX (docs/protocol.md): messages of another format, or of no link,
// are dropped and counted. Below that, an RDMA fabric is trusted. There is no encryption, and every
// process that speaks UCX's own protocol can end this process or write to its memory. Keep others
// off the fabric.
class UcxTransport : public TransportBackend, private EventLoop::Handler {
 public:
  // `loop` must outlive the transport. Returns UNAVAILABLE if UCX is not installed or finds no such
  // network.
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Create(EventLoop* loop,
                                                              UcxTransportOptions options = {});
  ~UcxTransport() override;

  void SetReceiver(MessageReceiver* receiver) override { receiver_ = receiver; }
  std::string address() const override { return address_; }
  std::string name() const override { return "rdma"; }
  void OpenSession(uint64_t job, uint32_t generation, const SessionToken& token) override;
  void CloseSession(uint64_t job, uint32_t generation) override;
  absl::StatusOr<PeerId> Connect(absl::string_view address,
                                 const LinkCredentials& credentials) override;
  void Disconnect(PeerId peer) override;
  LinkDescription Describe(PeerId peer) const override;
  void Send(PeerId peer, const WireHeader& header, absl::Span<const std::byte> payload,
            SendDone done) override;
  absl::StatusOr<std::unique_ptr<MemoryRegistration>> RegisterMemory(
      absl::Span<std::byte> memory) override;

  int Advance() override;
  // Also polls the network, which over RDMA needs no system call.
  bool HasNews() const override;
  bool PrepareToSleep() override;
  absl::Duration SleepMax() const override;

  // The number of messages that were malformed or did not match their size. Thread-safe.
  int64_t malformed_messages() const { return malformed_.load(std::memory_order_relaxed); }
  // The number of messages of no link, including those in transit when a peer was disconnected.
  // Thread-safe.
  int64_t stray_messages() const { return stray_.load(std::memory_order_relaxed); }
  // The number of peers that connected and were refused. Thread-safe.
  int64_t refused_joins() const { return refused_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;

  struct Callbacks;  // the functions that UCX calls
  struct Outgoing;
  struct Incoming;
  struct Peer;
  struct JoinRequest;
  struct Arrival {
    Peer* peer;
    WireHeader header;
    absl::Span<const std::byte> payload;
    bool whole = true;  // false: the payload was lost
  };
  // A payload without a place yet. It is copied here, or it is still at the sender and UCX has a
  // handle.
  struct Deferred {
    Peer* peer;
    WireHeader header;
    void* fetched_by = nullptr;
    std::vector<std::byte> payload;
  };

  UcxTransport(EventLoop* loop, std::shared_ptr<ucp_context> context, ucp_worker* worker,
               int event_fd, std::string address);

  void Ready(uint32_t events) override;

  bool HoldsNews() const;  // news that was received already
  Peer& Find(PeerId id) const;
  Peer* FindLink(const LinkTag& tag) const;  // null: there is none
  Peer& Add(const LinkIdentity& identity, const SessionToken& token);
  void Open(Peer& peer, absl::string_view ucx_address);
  void Welcomed(Peer& peer, const UcxControl& welcome);
  void NoteReady(Peer& peer);
  void Lose(Peer& peer, absl::Status why);
  void SayGoodbye(Peer& peer);
  void LetGo(Peer& peer, std::chrono::nanoseconds time);
  void Close(Peer& peer, absl::Status unsent);
  void CutOffPeer(Peer& peer);

  Outgoing* TakeOutgoing();
  SendDone Detach(Outgoing* outgoing);
  bool Post(ucp_ep* endpoint, Outgoing* outgoing);
  void PostUnheeded(ucp_ep* endpoint, Outgoing* outgoing);
  void PostControl(ucp_ep* endpoint, const UcxControl& control);
  void SendJoin(Peer& peer, absl::string_view to);

  void Fetch(void* data, const Arrival& arrival);  // receives a large payload when its turn comes
  void FetchNext();
  void BeginFetch(Incoming* incoming);
  void EndFetch(Incoming* incoming, int status);
  void AbandonFetches(Peer& peer);
  void AwaitFetches(Peer& peer);

  void PlaceDeferred();
  void DropDeferred(const Peer& peer);

  int AnswerJoins();
  int Deliver();
  int FinishSends();
  int ReportLosses();
  void ReapClosed();

  const std::shared_ptr<ucp_context> context_;  // shared with the memory registrations
  ucp_worker* const worker_;
  const int event_fd_;  // belongs to the worker
  const std::string address_;
  MessageReceiver* receiver_ = nullptr;
  SessionTable sessions_;
  bool signalled_ = false;  // the descriptor stays ready until the worker is armed again
  bool watched_ = false;
  std::atomic<int64_t> malformed_ = 0;
  std::atomic<int64_t> stray_ = 0;
  std::atomic<int64_t> refused_ = 0;

  int32_t peers_made_ = 0;
  absl::flat_hash_map<PeerId, std::unique_ptr<Peer>> peers_;
  absl::flat_hash_map<LinkTag, Peer*> links_;  // links on which messages may arrive
  std::vector<Peer*> leaving_, closing_;
  std::vector<Peer*> lost_;  // to be reported; contains no disconnected peer

  FetchTurns turns_;

  // Set while Disconnect() waits for UCX: the receiver must not be asked for places then.
  bool deferring_ = false;
  std::vector<Deferred> deferred_;

  // Pools as large as the largest number of messages in progress at once.
  std::vector<std::unique_ptr<Outgoing>> outgoing_;
  std::vector<Outgoing*> free_outgoing_;
  std::vector<std::unique_ptr<Incoming>> incoming_;
  std::vector<Incoming*> free_incoming_;

  // UCX's callbacks fill the first of each pair; the second is being processed.
  std::vector<Arrival> arrived_, delivering_;
  std::vector<Outgoing*> sent_, finishing_;
  std::vector<JoinRequest> joins_, answering_;
};

}  // namespace muster
