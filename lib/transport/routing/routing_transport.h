// One transport over several: shared memory to peers on this host, TCP or RDMA to all others.
#pragma once

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
#include "lib/concurrency/poll_budget.h"
#include "lib/transport/core/carrier.h"
#include "lib/transport/core/event_loop.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/tcp/data_port.h"

namespace muster {

// What links may run over.
enum class LinkKind {
  kAuto,          // shared memory to peers on this host, TCP to others
  kSharedMemory,  // peers on other hosts are refused
  kTcp,           // also to peers on this host
  kRdma,          // likewise, by UCX
};

// "auto", "shm", "tcp", "rdma"; INVALID_ARGUMENT for another word.
absl::StatusOr<LinkKind> ParseLinkKind(absl::string_view word);

struct RoutingTransportOptions {
  LinkKind links = LinkKind::kAuto;
  PollBudgetOptions polling;
  std::shared_ptr<DataPort> port;  // for kAuto and kTcp: where this process is reached
  int connections = 1;             // of TCP to each peer, see TcpTransportOptions
};

// Its address holds those of all of its carriers, so that whoever connects chooses, by what both
// sides have: shared memory where the peer's process can be reached on this host (same host, user
// and network namespace), else TCP; or RDMA, where both were told to use it.
//
// All carriers are on one EventLoop: the thread looks at descriptors and sleeps in one place.
class RoutingTransport : public Carrier {
 public:
  // UNAVAILABLE where what `links` asks for cannot be had.
  static absl::StatusOr<std::unique_ptr<RoutingTransport>> Create(RoutingTransportOptions options);
  ~RoutingTransport() override;

  void SetReceiver(MessageReceiver* receiver) override;
  std::string address() const override { return address_; }
  // "shm+tcp"
  std::string name() const override;
  void OpenSession(uint64_t job, uint32_t generation, const SessionToken& token) override;
  void CloseSession(uint64_t job, uint32_t generation) override;
  // FAILED_PRECONDITION, besides, for a peer that nothing in common reaches.
  absl::StatusOr<PeerId> Connect(absl::string_view address,
                                 const LinkCredentials& credentials) override;
  void Disconnect(PeerId peer) override;
  void CutOff(PeerId peer) override;
  LinkDescription Describe(PeerId peer) const override;
  void Send(PeerId peer, const WireHeader& header, absl::Span<const std::byte> payload,
            SendDone done) override;
  absl::StatusOr<std::unique_ptr<MemoryRegistration>> RegisterMemory(
      absl::Span<std::byte> memory) override;

  int Advance() override;
  bool HasNews() const override;
  void WakePeers() override;
  bool PrepareToSleep() override;
  absl::Duration SleepMax() const override;

 private:
  class CarrierReceiver;  // what a carrier calls: knows its peers by our names
  struct Way {            // to some of the peers
    LinkKind kind;        // kSharedMemory, kTcp or kRdma
    std::unique_ptr<CarrierReceiver> receiver;  // outlives the carrier
    std::unique_ptr<Carrier> carrier;
  };

  RoutingTransport(LinkKind links, std::unique_ptr<EventLoop> loop, std::vector<Way> ways);

  // Which way a peer is on is its id's lowest two bits.
  static PeerId Outer(PeerId inner, int way);
  static PeerId Inner(PeerId peer);
  Carrier& CarrierOf(PeerId peer) const;

  const LinkKind links_;
  const std::unique_ptr<EventLoop> loop_;
  const std::vector<Way> ways_;  // the best first; never empty
  const std::string address_;
  absl::flat_hash_map<PeerId, std::string> fallbacks_;  // of peers that have one
};

}  // namespace muster
