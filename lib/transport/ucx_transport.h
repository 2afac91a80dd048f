// The data plane between processes: UCX active messages.
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
#include "lib/transport/transport.h"
#include "lib/transport/wire.h"

struct ucp_context;
struct ucp_ep;
struct ucp_worker;

namespace muster {

struct UcxTransportOptions {
  // Wait() polls for some 50 us before it blocks. Shortens round trips where UsableCpus() exceeds
  // the number of busy threads and lengthens them everywhere else.
  bool spin = false;
};

// Small payloads travel with their header and are copied once at the receiver. From 16 KiB on they
// wait at the sender until PlacePayload has named memory, and UCX puts them there. Nothing of
// payload size is allocated or stands in between.
//
// Which network carries the links is UCX's choice among what the environment allows (UCX_TLS,
// UCX_NET_DEVICES, every other UCX_* variable); a variable that is set wins over what is tuned
// here. Endpoints notice a dead peer, which rules out UCX's shared memory: processes on one host
// meet over TCP on loopback.
//
// The receiver's calls, except PlacePayload, and `done` run outside UCX and may call anything here
// but Progress() and the destructor. PlacePayload only names memory.
//
// Disconnect() lets go out what was sent and is done; sends that are not done end with CANCELLED.
// The destructor does so for every peer, for at most 0.2 s, and calls nothing any more.
//
// Messages that are none of ours are dropped and counted. UCX itself trusts its network: keep
// others away from the data ports (docs/protocol.md).
class UcxTransport : public Transport {
 public:
  // UNAVAILABLE where UCX finds no usable network.
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Create(UcxTransportOptions options = {});
  ~UcxTransport() override;

  void SetReceiver(MessageReceiver* receiver) override { receiver_ = receiver; }
  std::string address() const override { return address_; }
  // "ucx:tcp"; several joined by "+"; "ucx" while nobody is connected.
  std::string name() const override;
  absl::StatusOr<PeerId> Connect(absl::string_view address) override;
  void Disconnect(PeerId peer) override;
  void Send(PeerId peer, const WireHeader& header, absl::Span<const std::byte> payload,
            SendDone done) override;
  absl::StatusOr<std::unique_ptr<MemoryRegistration>> RegisterMemory(
      absl::Span<std::byte> memory) override;
  int Progress() override;
  void Wait(absl::Duration timeout) override;
  void Wake() override;

  // Messages whose header was malformed or did not fit their size. Any thread.
  int64_t malformed_messages() const { return malformed_.load(std::memory_order_relaxed); }

 private:
  struct Callbacks;  // what UCX calls
  struct Outgoing;
  struct Incoming;
  struct Peer;
  struct Arrival {
    WireHeader header;
    absl::Span<const std::byte> payload;
  };

  UcxTransport(std::shared_ptr<ucp_context> context, ucp_worker* worker, int event_fd,
               std::string address, bool spin);

  Peer& Find(PeerId id);
  Outgoing* TakeOutgoing();
  SendDone Detach(Outgoing* outgoing);
  void Fetch(void* data, const Arrival& arrival);  // starts to receive a large payload
  void Close(Peer& peer, absl::Status unsent);
  void CutOff(Peer& peer);
  int Deliver();
  int FinishSends();
  int ReportLosses();
  void ReapClosed();
  bool HasNews() const { return !arrived_.empty() || !sent_.empty() || !lost_.empty(); }

  const std::shared_ptr<ucp_context> context_;  // shared with the memory registrations
  ucp_worker* const worker_;
  const int event_fd_;  // the worker's
  const std::string address_;
  const bool spin_;
  MessageReceiver* receiver_ = nullptr;
  std::atomic<int64_t> malformed_ = 0;

  int32_t peers_made_ = 0;
  absl::flat_hash_map<PeerId, std::unique_ptr<Peer>> peers_;
  std::vector<Peer*> closing_;
  std::deque<PeerId> lost_;  // to be reported

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
