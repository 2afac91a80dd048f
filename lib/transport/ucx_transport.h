// The data plane between machines: UCX active messages.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/concurrency/poll_budget.h"
#include "lib/transport/fetch_turns.h"
#include "lib/transport/transport.h"
#include "lib/transport/wire.h"

struct ucp_context;
struct ucp_ep;
struct ucp_worker;

namespace muster {

struct UcxTransportOptions {
  PollBudgetOptions polling;  // of Wait()

  // Most connections to each peer, 1 to kConnectionsMax; each is opened when those before are busy,
  // and messages are spread over them. For fast TCP networks, which one connection does not fill.
  // UCX 1.13 may abort this process when a peer dies within the milliseconds in which it opens one:
  // an assertion in ucp_request.c on purging a wire-up reply. Hence no more than one unless asked.
  int connections = 1;

  // Links must run over RDMA: Connect() refuses a peer that UCX reaches over TCP only. A UCX_TLS
  // that names rc, dc or ud asks for it as well. With allow_tcp_fallback it is a warning instead.
  bool require_rdma = false;
  bool allow_tcp_fallback = false;
};

// Small payloads travel with their header and are copied once at the receiver. From 16 KiB on they
// wait at the sender until PlacePayload has named memory and the sender has his turn, and UCX puts
// them there. Nothing of payload size is allocated or stands in between.
//
// Which network carries the links is UCX's choice among what the environment allows (UCX_TLS,
// UCX_NET_DEVICES, every other UCX_* variable); a variable that is set wins over what is tuned
// here. Endpoints notice a dead peer, which rules out UCX's shared memory: processes on one host
// meet over TCP on loopback.
//
// Device memory (of a GPU) may be sent, placed and registered only where Describe() says
// device_memory; elsewhere the caller stages it through host memory.
//
// The receiver's calls, except PlacePayload, and `done` run outside UCX and may call anything here
// but Progress() and the destructor. PlacePayload only names memory; Wait() may call it too.
//
// Disconnect() lets go out what was sent and is done; sends that are not done end with CANCELLED.
// The destructor does so for every peer, for at most 0.2 s, and calls nothing any more.
//
// Messages that are none of ours are dropped and counted. UCX itself trusts its network: keep
// others away from the data ports (docs/protocol.md).
class UcxTransport : public Transport {
 public:
  static constexpr int kConnectionsMax = 16;

  // UNAVAILABLE where UCX finds no usable network.
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Create(UcxTransportOptions options = {});
  ~UcxTransport() override;

  void SetReceiver(MessageReceiver* receiver) override { receiver_ = receiver; }
  std::string address() const override { return address_; }
  // "ucx:tcp"; several joined by "+"; "ucx" while nobody is connected.
  std::string name() const override;
  // FAILED_PRECONDITION, besides, for a peer that RDMA does not reach where it must.
  absl::StatusOr<PeerId> Connect(absl::string_view address) override;
  void Disconnect(PeerId peer) override;
  LinkDescription Describe(PeerId peer) const override;
  void Send(PeerId peer, const WireHeader& header, absl::Span<const std::byte> payload,
            SendDone done) override;
  absl::StatusOr<std::unique_ptr<MemoryRegistration>> RegisterMemory(
      absl::Span<std::byte> memory) override;
  int Progress() override;
  void Wait(absl::Duration timeout) override;
  void Wake() override;

  // For who waits for this transport and something else together:
  //   while (nothing happens) if (transport.TakeIn() || transport.TakeWake()) return;   polls
  //   if (transport.PrepareToSleep()) transport.Sleep(timeout);                          blocks
  // Takes in what the network has; whether Progress() would now hand out or has handed on
  // something.
  bool TakeIn();
  // Whether Progress() would hand out something that is here already. No system call.
  bool HasNews() const { return !arrived_.empty() || !sent_.empty() || !lost_.empty(); }
  // Whether Wake() was called since this was last asked.
  bool TakeWake();
  // False when there is something for Progress(), or Wake() was called. After true the descriptor
  // becomes readable when there is, or when Wake() is called. Progress() at most SleepMax() later.
  bool PrepareToSleep();
  bool Sleep(absl::Duration timeout);  // whether the descriptor is readable; false: time is up
  int event_fd() const { return event_fd_; }  // only to poll for POLLIN
  absl::Duration SleepMax() const;

  // Messages whose header was malformed or did not fit their size. Any thread.
  int64_t malformed_messages() const { return malformed_.load(std::memory_order_relaxed); }

 private:
  struct Callbacks;  // what UCX calls
  struct Outgoing;
  struct Incoming;
  struct Connection;
  struct Peer;
  struct Arrival {
    WireHeader header;
    absl::Span<const std::byte> payload;
  };

  UcxTransport(UcxTransportOptions options, std::shared_ptr<ucp_context> context,
               ucp_worker* worker, int event_fd, std::string address);

  Peer& Find(PeerId id) const;
  void Open(Peer& peer);
  Connection& ConnectionOf(Peer& peer);  // for the next message
  absl::Status CheckNetwork(const LinkDescription& link) const;
  Outgoing* TakeOutgoing();
  SendDone Detach(Outgoing* outgoing);
  void Fetch(void* data, const Arrival& arrival);  // receives a large payload, in its turn
  void FetchNext();
  void BeginFetch(Incoming* incoming);
  void EndFetch(Incoming* incoming);
  void Close(Peer& peer, absl::Status unsent);
  void CutOff(Peer& peer);
  int Deliver();
  int FinishSends();
  int ReportLosses();
  void ReapClosed();

  const UcxTransportOptions options_;
  const std::shared_ptr<ucp_context> context_;  // shared with the memory registrations
  ucp_worker* const worker_;
  const int event_fd_;  // the worker's
  const std::string address_;
  MessageReceiver* receiver_ = nullptr;
  PollBudget budget_;
  std::atomic<int64_t> malformed_ = 0;
  std::atomic<bool> woken_ = false;
  std::atomic<bool> sleeping_ = false;  // Wake() has to signal

  int32_t peers_made_ = 0;
  absl::flat_hash_map<PeerId, std::unique_ptr<Peer>> peers_;
  std::vector<Peer*> closing_;
  std::deque<PeerId> lost_;  // to be reported

  FetchTurns turns_;

  // Pools: as large as the largest number of messages that were under way together.
  std::vector<std::unique_ptr<Outgoing>> outgoing_;
  std::vector<Outgoing*> free_outgoing_;
  std::vector<std::unique_ptr<Incoming>> incoming_;
  std::vector<Incoming*> free_incoming_;

  // UCX's callbacks fill the first of each pair; what the second holds is being handed out.
  std::vector<Arrival> arrived_, delivering_;
  std::vector<Outgoing*> sent_, finishing_;
};

}  // namespace muster
