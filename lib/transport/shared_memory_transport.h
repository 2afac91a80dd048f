// The data plane between processes of one host: shared memory, and a Unix socket that notices
// death.
#pragma once

#include <sys/epoll.h>

#include <array>
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
#include "lib/transport/control_socket.h"
#include "lib/transport/doorbell.h"
#include "lib/transport/file_descriptor.h"
#include "lib/transport/local_address.h"
#include "lib/transport/message_ring.h"
#include "lib/transport/registered_slabs.h"
#include "lib/transport/sealed_memory.h"
#include "lib/transport/transport.h"
#include "lib/transport/wire.h"

namespace muster {

struct SharedMemoryTransportOptions {
  PollBudgetOptions polling;  // of Wait()
};

// Every connection is a link of its own: a ring of message descriptors in memory that both sides
// map, and a Unix socket that hands over that memory, the sender's slabs and both sides' doorbells,
// and is closed by the kernel when either process dies. docs/protocol.md has the formats.
//
// A payload in a registered SharedSlab (RegisterMemory) stays where it is: the receiver reads the
// sender's pages, in place where PlacePayload says so, else with one copy to the place. The
// sender's `done` comes when it has. Payloads of up to kCopiedBytesMax, and all that lie elsewhere,
// are copied through the link's memory, 1 MiB at a time; their `done` comes when the last of it is
// there, inside Send() where there is room. Messages on one link keep their order. Nothing is
// allocated per message. A receiver that sleeps may be woken only by Progress() or Wait() here:
// once for all that was sent before. A sender that sleeps until a payload or room comes back is
// woken by Wait(), an idle Progress(), or the eighth busy one.
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
// nothing any more. A process that is stopped is not dead: its messages wait.
class SharedMemoryTransport : public Transport {
 public:
  // Larger payloads in a registered slab are not copied to the link.
  static constexpr size_t kCopiedBytesMax = 512;

  // UNAVAILABLE where the kernel lacks what this needs (Linux 3.17, /proc).
  static absl::StatusOr<std::unique_ptr<SharedMemoryTransport>> Create(
      SharedMemoryTransportOptions options = {});
  ~SharedMemoryTransport() override;

  // Whether `address` is that of a transport on this host that a process of this user, in this
  // network namespace, can reach. False for bytes that are no address of ours. Any thread.
  static bool IsLocal(absl::string_view address);

  void SetReceiver(MessageReceiver* receiver) override { receiver_ = receiver; }
  std::string address() const override { return address_; }
  std::string name() const override { return "shm"; }
  absl::StatusOr<PeerId> Connect(absl::string_view address) override;
  void Disconnect(PeerId peer) override;
  void Send(PeerId peer, const WireHeader& header, absl::Span<const std::byte> payload,
            SendDone done) override;
  // Memory in a SharedSlab becomes readable for every peer that is sent a payload in it, all of the
  // slab, until the handle is destroyed and no lease is left. For other memory, and beyond 4,096
  // slabs: nothing happens, and payloads there are copied.
  absl::StatusOr<std::unique_ptr<MemoryRegistration>> RegisterMemory(
      absl::Span<std::byte> memory) override;
  int Progress() override;
  void Wait(absl::Duration timeout) override;
  void Wake() override;

  // For who waits for this transport and something else together:
  //   poll for a while: if (transport.HasNews()) return;
  //   sleep: if (transport.PrepareToSleep()) transport.Sleep(timeout);
  //   transport.Progress();
  // False when there is something for Progress(), or Wake() was called since the last time.
  bool PrepareToSleep();
  // After true, once: blocks until there is, Wake() is called or a descriptor of AlsoWatch() is
  // readable (true), or `timeout`, rounded up to milliseconds, has passed (false). Progress() is
  // due then, and at most SleepMax() after PrepareToSleep().
  bool Sleep(absl::Duration timeout);
  void AlsoWatch(int fd);
  absl::Duration SleepMax() const;
  // Whether Progress() would do something that needs no look at the sockets. No system call.
  bool HasNews() const;
  // Before polling HasNews(): wakes whoever sleeps and waits for what was done here.
  void WakePeers();

  // Messages, and descriptors of messages, that no Muster process sends. Any thread.
  int64_t malformed_messages() const { return malformed_.load(std::memory_order_relaxed); }

 private:
  struct Link;          // either of the next two
  struct OutgoingLink;  // of a peer, to which messages go
  struct IncomingLink;  // from somebody who connected to us
  struct Outgoing;      // a send that is not done
  class SlabRegistration;
  // A payload lent to the receiver.
  struct Loan {
    IncomingLink* link = nullptr;  // null: gone
    uint32_t number = 0;           // the sender's
    std::shared_ptr<SealedMemory> slab;
  };
  struct FinishedSend {
    SendDone done;
    absl::Status status;
  };

  SharedMemoryTransport(LocalAddress address, ControlSocket listener, FileDescriptor events,
                        Doorbell bell, PollBudgetOptions polling);

  OutgoingLink& Find(PeerId id);

  // Sending.
  void Open(OutgoingLink& link);
  void Pump(OutgoingLink& link);
  void WakeReader(OutgoingLink& link);
  bool CanAdvance(const OutgoingLink& link) const;
  bool Advance(OutgoingLink& link, Outgoing& send);
  bool LendFromSlab(OutgoingLink& link, Outgoing& send, uint32_t slab);
  bool CopyToArea(OutgoingLink& link, Outgoing& send);
  bool Announce(OutgoingLink& link, uint32_t slab);
  void Withdraw(OutgoingLink& link);
  int TakeReturns(OutgoingLink& link);
  void CancelWaiting(OutgoingLink& link, const absl::Status& why);
  void Finish(Outgoing* send, const absl::Status& status);  // calls `done`
  void FinishLater(Outgoing* send, const absl::Status& status);
  void Lose(OutgoingLink& link, absl::Status why);

  // Receiving.
  int Receive(IncomingLink& link, int messages_max);
  absl::Status Take(IncomingLink& link, const RingDescriptor& descriptor);
  absl::Status TakeFragment(IncomingLink& link, const RingDescriptor& fragment);
  absl::Status TakeFromSlab(IncomingLink& link, const RingDescriptor& descriptor);
  PayloadLease Lend(IncomingLink& link, uint32_t number, std::shared_ptr<SealedMemory> slab);
  void Return(uint64_t loan) override;
  void Break(IncomingLink& link, const absl::Status& why);

  // Sockets.
  void AddEvent(int fd, uint32_t what, void* whose);
  int LookForEvents(int milliseconds);
  void Notice(void* whose);
  void Watch(Link& link);
  void Close(Link& link);
  void WatchForRoom(OutgoingLink& link, bool watch);
  void PollSockets();
  void AcceptAll();
  void Answer(IncomingLink& link);
  void AnswerAll();
  void ReadSocket(OutgoingLink& link);
  void ReadSocket(IncomingLink& link);
  absl::Status Hear(OutgoingLink& link, ControlSocket::Received received);
  absl::Status Hear(IncomingLink& link, ControlSocket::Received received);

  // The rest of Progress().
  int ReceiveAll();
  int DrainEnded();
  int FinishSends();
  int ReportLosses();
  void Reap();

  // Sleeping.
  void StayAwake();
  void WakeReaders();
  void WakeWriters();
  void MarkDue(IncomingLink& link);
  bool WasWoken(const IncomingLink& link) const;

  const LocalAddress local_;
  const std::string address_;
  ControlSocket listener_;
  const FileDescriptor events_;  // epoll: the listener, the bell and every link's socket
  const Doorbell bell_;          // of Wake() and of peers
  PollBudget budget_;
  MessageReceiver* receiver_ = nullptr;
  std::atomic<bool> woken_ = false;
  std::atomic<int64_t> malformed_ = 0;

  bool asleep_ = false;                // the links say so
  bool sockets_due_ = false;           // one of them may have something
  bool accept_due_ = false;            // somebody waits at the listener
  bool answers_due_ = false;           // some of incoming_ wait for our bell
  std::array<epoll_event, 64> ready_;  // what Sleep() saw, for Progress()
  int ready_count_ = 0;
  int64_t progresses_ = 0;
  int busy_turns_ = 0;   // since writers were woken
  int64_t changes_ = 0;  // to rings, and wake-ups: counts them to tell which came first

  int32_t peers_made_ = 0;
  absl::flat_hash_map<PeerId, std::unique_ptr<OutgoingLink>> peers_;
  std::vector<OutgoingLink*> outgoing_;  // what peers_ owns, in order
  int opening_ = 0;                      // of them wait for the other side's listener
  std::vector<std::unique_ptr<IncomingLink>> incoming_;
  std::vector<IncomingLink*> due_;        // their writers may be asleep and wait for what we did
  std::vector<OutgoingLink*> published_;  // likewise their readers
  bool ended_ = false;                    // some of incoming_ have
  bool reap_ = false;                     // there is something for Reap()
  std::deque<PeerId> lost_;               // to be reported

  const std::shared_ptr<RegisteredSlabs> slabs_;
  // Pools: as large as the largest number that was in use together.
  std::vector<std::unique_ptr<Outgoing>> sends_;
  std::vector<Outgoing*> free_sends_;
  std::vector<Loan> loans_;
  std::vector<uint32_t> free_loans_;
  // The second is being handed out.
  std::vector<FinishedSend> finished_, finishing_;
};

}  // namespace muster
