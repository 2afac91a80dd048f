// The data plane between processes of one host: shared memory, with a Unix socket that detects the
// peer's death.
#pragma once

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
#include "lib/transport/core/transport.h"
#include "lib/transport/core/transport_backend.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "lib/transport/shm/control_socket.h"
#include "lib/transport/shm/local_address.h"
#include "lib/transport/shm/shared_memory_link.h"

namespace muster {

struct SharedMemoryTransportOptions {
  // The time for a connecting peer to introduce itself, and for a dialled peer to answer. A
  // connecting peer that takes longer is refused, and a dialled peer is lost with UNAVAILABLE. If
  // this process has no descriptor left, it dials again for this time; then the peer is lost with
  // RESOURCE_EXHAUSTED.
  absl::Duration greeting_time = absl::Seconds(5);
  // The limit of links that peers opened. Further peers are told that there are too many.
  int accepted_max = 1024;
};

// A link is a Unix socket and a ring of message descriptors for each direction, in memory that both
// sides map. The kernel closes the socket when either process dies. Over the socket the sides
// exchange that memory, the slabs from which they send, and their doorbells. docs/protocol.md has
// the formats.
//
// Payloads:
// - A payload in a registered SharedSlab (RegisterMemory) is not copied by the sender. The receiver
//   reads the sender's pages: in place if PlacePayload allows it, else with one copy to the place.
//   The sender's `done` runs after that.
// - Payloads of up to kCopiedBytesMax, and payloads in other memory, are copied through the link's
//   memory of 1 MiB, in fragments of 128 KiB. So are others while 1,024 payloads are lent. Their
//   `done` runs when the last byte is there, inside Send() if there is room.
//
// Messages on one link keep their order. They wait here until the link is open. No message
// allocates.
//
// Progress() and Wait() wake a sleeping receiver, once for all messages sent before. Send() tries
// to wake it at once if the message has 64 KiB or more. A sender that sleeps until a payload or
// room comes back is woken by Wait(), by an idle Progress(), or by the eighth busy one.
//
// A peer must be a process of the same user or of root; others are refused. Everything that a peer
// writes is checked before use. A peer that breaks the protocol loses its link and kills no
// process.
//
// Callbacks of the receiver, except PlacePayload, and `done` may call everything here except
// Progress() and the destructor. PlacePayload only returns memory.
//
// After Disconnect(), completed sends are still delivered, and so are sends that the receiver may
// already have seen. Payloads of the latter stay lent until the receiver returns them; then their
// `done` runs. Sends that still wait here end with CANCELLED. The destructor does the same for
// every peer, for at most 0.2 s, and calls no callbacks. A stopped process with an open link is not
// dead: its messages wait.
class SharedMemoryTransport : public TransportBackend, private EventLoop::Handler {
 public:
  // Payloads in a registered slab are copied to the link up to this size.
  static constexpr size_t kCopiedBytesMax = LinkWriter::kCopiedBytesMax;
  // The limit of connected peers that have not introduced themselves. Others wait to be accepted.
  static constexpr int kUngreetedMax = 64;
  // The limit of connections that one Progress() accepts, so that a flood of them delays no other
  // link.
  static constexpr int kAcceptsMax = 64;

  // Requires: `loop` outlives the transport. Returns UNAVAILABLE if the kernel lacks a feature
  // (Linux 3.17, /proc), and RESOURCE_EXHAUSTED if there is no descriptor left.
  static absl::StatusOr<std::unique_ptr<SharedMemoryTransport>> Create(
      EventLoop* loop, SharedMemoryTransportOptions options = {});
  ~SharedMemoryTransport() override;

  // Whether `address` is that of a transport on this host that processes of this user can reach in
  // this network namespace. False for bytes that are no such address. Thread-safe.
  static bool IsLocal(absl::string_view address);
  // The reason why a transport on this host is not local in that sense. Returns "" if it is local
  // or on another host. Thread-safe.
  static std::string ObstacleTo(absl::string_view address);

  void SetReceiver(MessageReceiver* receiver) override { commons_.receiver = receiver; }
  std::string address() const override { return address_; }
  std::string name() const override { return "shm"; }
  void OpenSession(uint64_t job, uint32_t generation, const SessionToken& token) override;
  void CloseSession(uint64_t job, uint32_t generation) override;
  absl::StatusOr<PeerId> Connect(absl::string_view address,
                                 const LinkCredentials& credentials) override;
  void Disconnect(PeerId peer) override;
  void CutOff(PeerId peer) override;
  LinkDescription Describe(PeerId peer) const override;
  void Send(PeerId peer, const WireHeader& header, absl::Span<const std::byte> payload,
            SendDone done) override;
  // Memory in a SharedSlab becomes readable for every peer that is sent a payload in it: the whole
  // slab, until the handle is destroyed and no lease is left. Other memory, and slabs beyond 4,096,
  // are not registered: payloads there are copied.
  absl::StatusOr<std::unique_ptr<MemoryRegistration>> RegisterMemory(
      absl::Span<std::byte> memory) override;

  int Advance() override;
  bool HasNews() const override;
  void WakePeers() override;
  bool PrepareToSleep() override;
  absl::Duration SleepMax() const override;

  // The number of messages and descriptors that no correct Muster process sends. Thread-safe.
  int64_t malformed_messages() const { return commons_.malformed.load(std::memory_order_relaxed); }
  // The number of refused connections: of another user, not let in, silent, or too many. Logged at
  // most once a second. Thread-safe.
  int64_t turned_away() const { return commons_.turned_away.load(std::memory_order_relaxed); }

 private:
  // Finds a link that is about to be left; null if it has ended already.
  SharedMemoryLink* FindLeaving(PeerId peer);
  using Time = SharedMemoryLink::Time;
  class SlabRegistration;

  SharedMemoryTransport(EventLoop* loop, LocalAddress address, ControlSocket listener,
                        SharedMemoryTransportOptions options);

  void Return(uint64_t loan) override;
  void Ready(uint32_t) override;  // the listener

  void LookAtSockets();
  void AcceptSome(Time now);
  int CountUngreeted() const;
  void StayAwake();
  void WakeReaders();
  void WakeWriters();
  int TellEnds();
  void Settle();

  const LocalAddress local_;
  const std::string address_;
  const SharedMemoryTransportOptions options_;
  ControlSocket listener_;
  LinkCommons commons_;
  std::vector<std::unique_ptr<SharedMemoryLink>> links_;
  // Links that were reported as lost, until they are disconnected.
  absl::flat_hash_map<PeerId, absl::Status> lost_;

  bool asleep_ = false;               // the links have set their sleep flags
  bool accept_due_ = false;           // a connection may wait at the listener
  Time accept_at_ = {};               // accept no earlier than this
  Time next_deadline_ = Time::max();  // of an ungreeted or unanswered peer
  bool leaving_ = false;              // some links wait until payloads are returned
  int busy_turns_ = 0;                // since the last WakeWriters()
};

}  // namespace muster
