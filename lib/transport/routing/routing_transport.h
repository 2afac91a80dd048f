// A transport over several backends: shared memory to peers on this host, TCP or RDMA to all
// others.
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
#include "lib/transport/core/event_loop.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/transport_backend.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/tcp/data_port.h"

namespace muster {

// The backends that links may use.
enum class LinkKind {
  kAuto,          // shared memory to peers on this host, TCP to others
  kSharedMemory,  // peers on other hosts are refused
  kTcp,           // also to peers on this host
  kRdma,          // with UCX, also to peers on this host
};

// Parses "auto", "shm", "tcp" or "rdma". Returns INVALID_ARGUMENT for any other word.
absl::StatusOr<LinkKind> ParseLinkKind(absl::string_view word);

struct RoutingTransportOptions {
  LinkKind links = LinkKind::kAuto;
  PollBudgetOptions polling;
  std::shared_ptr<DataPort> port;  // for kAuto and kTcp: the port at which this process is reached
  int connections = 1;             // of TCP to each peer, see TcpTransportOptions
};

// The address contains the addresses of all backends. The connecting side chooses by what both
// sides have:
// - shared memory, if it can reach the peer's process on this host (same host, user and network
//   namespace);
// - else TCP;
// - RDMA, if both sides have it switched on.
//
// All backends share one EventLoop, so the thread polls descriptors and sleeps in one place.
class RoutingTransport : public TransportBackend {
 public:
  // Returns UNAVAILABLE or RESOURCE_EXHAUSTED if this machine lacks what `links` requires.
  static absl::StatusOr<std::unique_ptr<RoutingTransport>> Create(RoutingTransportOptions options);
  ~RoutingTransport() override;

  void SetReceiver(MessageReceiver* receiver) override;
  std::string address() const override { return address_; }
  // "shm+tcp"
  std::string name() const override;
  void OpenSession(uint64_t job, uint32_t generation, const SessionToken& token) override;
  void CloseSession(uint64_t job, uint32_t generation) override;
  // Returns FAILED_PRECONDITION if the two sides have no backend in common that reaches the peer.
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
  class BackendReceiver;  // the receiver of a backend: translates its peer ids to ours
  struct Path {           // a backend, which reaches some of the peers
    LinkKind kind;        // kSharedMemory, kTcp or kRdma
    std::unique_ptr<BackendReceiver> receiver;  // must outlive the backend
    std::unique_ptr<TransportBackend> backend;
  };

  RoutingTransport(LinkKind links, std::unique_ptr<EventLoop> loop, std::vector<Path> paths);

  // The lowest two bits of a PeerId are the index of its path.
  static PeerId Outer(PeerId inner, int path);
  static PeerId Inner(PeerId peer);
  TransportBackend& BackendOf(PeerId peer) const;

  const LinkKind links_;
  const std::unique_ptr<EventLoop> loop_;
  const std::vector<Path> paths_;  // in order of preference; never empty
  const std::string address_;
  absl::flat_hash_map<PeerId, std::string> fallbacks_;  // only of peers that have one
};

}  // namespace muster
