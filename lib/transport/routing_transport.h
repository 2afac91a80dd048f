// One transport over two: shared memory to peers on this host, UCX to all others.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/concurrency/poll_budget.h"
#include "lib/transport/shared_memory_transport.h"
#include "lib/transport/transport.h"
#include "lib/transport/ucx_transport.h"
#include "lib/transport/wire.h"

namespace muster {

// What links may run over.
enum class LinkKind {
  kAuto,          // shared memory to peers on this host, UCX to others
  kSharedMemory,  // peers on other hosts are refused
  kUcx,           // also to peers on this host
  kRdma,          // UCX, and RDMA it must be
};

// "auto", "shm", "ucx", "rdma"; INVALID_ARGUMENT for another word.
absl::StatusOr<LinkKind> ParseLinkKind(absl::string_view word);

struct RoutingTransportOptions {
  LinkKind links = LinkKind::kAuto;
  PollBudgetOptions polling;
  int connections = 1;              // of UCX to each peer, see UcxTransportOptions
  bool allow_tcp_fallback = false;  // where RDMA was asked for
};

// Its address holds those of both, so that whoever connects chooses: shared memory where the peer
// offers it and its process can be reached on this host (same host, user and network namespace),
// else UCX. Each side chooses for what it sends.
//
// A thread that waits polls and sleeps for both at once. Traffic over shared memory is not held up
// by looking at an idle network: that is then done now and then.
class RoutingTransport : public Transport {
 public:
  // UNAVAILABLE where what `links` asks for cannot be had.
  static absl::StatusOr<std::unique_ptr<RoutingTransport>> Create(RoutingTransportOptions options);
  ~RoutingTransport() override;

  void SetReceiver(MessageReceiver* receiver) override;
  std::string address() const override { return address_; }
  // "shm+ucx:tcp": what is open, with what carries it.
  std::string name() const override;
  // FAILED_PRECONDITION, besides, for a peer that nothing in common reaches, or not as it must.
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

 private:
  class CarrierReceiver;  // what a carrier calls: knows its peers by our names

  RoutingTransport(RoutingTransportOptions options, std::unique_ptr<SharedMemoryTransport> shared,
                   std::unique_ptr<UcxTransport> ucx);

  // Which of the two carries a peer is its id's lowest bit.
  static PeerId Outer(PeerId inner, bool shared);
  Transport& Carrier(PeerId peer) const;
  static PeerId Inner(PeerId peer);

  bool NetworkIsDue(int shared_events);
  bool News();
  bool TakeWake();
  bool PrepareToSleep();
  bool Sleep(absl::Duration timeout);

  const RoutingTransportOptions options_;
  // Either may be null, not both. The receivers outlive them.
  std::unique_ptr<CarrierReceiver> shared_receiver_, ucx_receiver_;
  const std::unique_ptr<SharedMemoryTransport> shared_;
  const std::unique_ptr<UcxTransport> ucx_;
  const std::string address_;
  PollBudget budget_;
  bool network_active_ = false;  // more so, lately, than shared memory
  int turns_without_network_ = 0;
  std::atomic<bool> woken_ = false;
  std::atomic<bool> sleeping_ = false;  // Wake() has to pass it on
};

}  // namespace muster
