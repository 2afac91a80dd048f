// The data plane between processes of one host: shared memory, and a Unix socket that notices
// death.
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
#include "lib/transport/core/carrier.h"
#include "lib/transport/core/event_loop.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "lib/transport/shm/control_socket.h"
#include "lib/transport/shm/local_address.h"
#include "lib/transport/shm/shared_memory_link.h"

namespace muster {

struct SharedMemoryTransportOptions {
  // Who connects has to introduce himself within it, and who was dialled to answer: he is lost
  // then, with UNAVAILABLE. So long Connect() dials again where no descriptor is left here; the
  // peer is lost then, with RESOURCE_EXHAUSTED.
  absl::Duration greeting_time = absl::Seconds(5);
  // Links of those who connected that are kept; more hear that there are too many.
  int accepted_max = 1024;
};

// A link is a Unix socket, which the kernel closes when either process dies, and a ring of message
// descriptors for each direction, in memory that both sides map. Over the socket they hand each
// other that memory, the slabs that they send from and their doorbells. docs/protocol.md has the
// formats.
//
// A payload in a registered SharedSlab (RegisterMemory) stays where it is: the receiver reads the
// sender's pages, in place where PlacePayload says so, else with one copy to the place. The
// sender's `done` comes when it has. Payloads of up to kCopiedBytesMax, and all that lie elsewhere,
// are copied through the link's memory, 1 MiB at a time; their `done` comes when the last of it is
// there, inside Send() where there is room. Messages on one link keep their order; until the other
// side has let this one in they wait here. Nothing is allocated per message. A receiver that sleeps
// may be woken only by Progress() or Wait() here: once for all that was sent before. A sender that
// sleeps until a payload or room comes back is woken by Wait(), an idle Progress(), or the eighth
// busy one.
//
// A peer is a process of the same user or of root; others are turned away. What a peer writes is
// checked before it is believed; one that breaks the protocol loses its link and kills nobody.
//
// The receiver's calls, except PlacePayload, and `done` may call anything here but Progress() and
// the destructor. PlacePayload only names memory.
//
// Disconnect() lets arrive what is done and what a receiver may already have seen; the `done` of
// the latter comes when it has let go, until when the payload belongs to it. What was still waiting
// here ends with CANCELLED. The destructor does so for every peer, for at most 0.2 s, and calls
// nothing any more. A process that is stopped, when its link is open, is not dead: its messages
// wait.
class SharedMemoryTransport : public Carrier, private EventLoop::Handler {
 public:
  // Larger payloads in a registered slab are not copied to the link.
  static constexpr size_t kCopiedBytesMax = LinkWriter::kCopiedBytesMax;
  // Of those who connected and have not introduced themselves; more wait to be accepted.
  static constexpr int kUngreetedMax = 64;
  // That one Progress() accepts: who knocks without end holds up nobody else.
  static constexpr int kAcceptsMax = 64;

  // `loop` outlives it. UNAVAILABLE where the kernel lacks what this needs (Linux 3.17, /proc),
  // RESOURCE_EXHAUSTED where it has no descriptor left.
  static absl::StatusOr<std::unique_ptr<SharedMemoryTransport>> Create(
      EventLoop* loop, SharedMemoryTransportOptions options = {});
  ~SharedMemoryTransport() override;

  // Whether `address` is that of a transport on this host that a process of this user, in this
  // network namespace, can reach. False for bytes that are no address of ours. Any thread.
  static bool IsLocal(absl::string_view address);
  // Why a transport on this very host is not local in that sense, in words; "": it is, or it is on
  // another host. Any thread.
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
  // Memory in a SharedSlab becomes readable for every peer that is sent a payload in it, all of the
  // slab, until the handle is destroyed and no lease is left. For other memory, and beyond 4,096
  // slabs: nothing happens, and payloads there are copied.
  absl::StatusOr<std::unique_ptr<MemoryRegistration>> RegisterMemory(
      absl::Span<std::byte> memory) override;

  int Advance() override;
  bool HasNews() const override;
  void WakePeers() override;
  bool PrepareToSleep() override;
  absl::Duration SleepMax() const override;

  // Messages, and descriptors of messages, that no Muster process sends. Any thread.
  int64_t malformed_messages() const { return commons_.malformed.load(std::memory_order_relaxed); }
  // Of those who connected: of another user, not let in, silent, or too many. Logged at most once a
  // second. Any thread.
  int64_t turned_away() const { return commons_.turned_away.load(std::memory_order_relaxed); }

 private:
  // That is about to be left; null: it has ended already.
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
  // Of those who were told as lost, until they are disconnected.
  absl::flat_hash_map<PeerId, absl::Status> lost_;

  bool asleep_ = false;               // the links say so
  bool accept_due_ = false;           // somebody waits at the listener, perhaps
  Time accept_at_ = {};               // not before
  Time next_deadline_ = Time::max();  // of somebody who has not introduced himself, or answered
  bool leaving_ = false;              // some links wait for payloads to come back
  int busy_turns_ = 0;                // since writers were woken
};

}  // namespace muster
