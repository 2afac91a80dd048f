// A link between two processes of one host, in both directions.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lib/concurrency/copy_crew.h"
#include "lib/concurrency/cpu_quota.h"
#include "lib/transport/core/doorbell.h"
#include "lib/transport/core/event_loop.h"
#include "lib/transport/core/mapped_slab.h"
#include "lib/transport/core/registered_slabs.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/session/session.h"
#include "lib/transport/shm/control_socket.h"
#include "lib/transport/shm/link_reader.h"
#include "lib/transport/shm/link_writer.h"
#include "lib/transport/shm/local_address.h"
#include "lib/transport/shm/pending_sends.h"

namespace muster {

class SharedMemoryLink;

// Payloads lent to the receiver, of all links of a transport. Numbers are used again, so that none
// allocates. Thread-compatible.
class LeaseTable {
 public:
  struct Lease {
    SharedMemoryLink* link = nullptr;  // null: gone
    uint32_t loan = 0;                 // the sender's number
    MappedSlab slab;                   // that it lies in
  };

  uint64_t Add(Lease lease);
  Lease Take(uint64_t number);
  // `link` is going.
  void Forget(const SharedMemoryLink* link);
  bool empty() const { return leases_.size() == free_.size(); }

 private:
  std::vector<Lease> leases_;
  std::vector<uint32_t> free_;
};

// What the links of one transport have in common; used on its thread.
struct LinkCommons {
  using Time = std::chrono::steady_clock::time_point;
  // What fails for want of descriptors or memory is tried again after it: they come free when
  // something else is closed, of which nobody tells.
  static constexpr std::chrono::milliseconds kRetryTime{100};

  Transport* transport;  // that leases are of
  EventLoop* loop;
  absl::Duration greeting_time;  // see SharedMemoryTransportOptions
  MessageReceiver* receiver = nullptr;
  SessionTable sessions;
  absl::flat_hash_map<PeerId, SharedMemoryLink*> peers;
  int32_t peers_made = 0;
  PendingSends sends;
  std::shared_ptr<RegisteredSlabs> slabs = std::make_shared<RegisteredSlabs>();
  LeaseTable leases;
  CopyCrew crew{CopyCrew::HelpersFor(UsableCpus())};
  std::atomic<int64_t> malformed = 0;    // any thread reads them
  std::atomic<int64_t> turned_away = 0;  // of those who connected

  // What the transport has to look after.
  bool sockets_due = false;                  // a link's socket may have something
  Time retry_at = Time::max();               // some link is to GoOn() then
  bool ends_due = false;                     // a link has ended, or has nothing left to wait for
  std::vector<SharedMemoryLink*> published;  // their readers may be asleep and wait for that
  std::vector<SharedMemoryLink*> returned;   // likewise their writers, for room and returns

  PeerId NewPeer(SharedMemoryLink* link) {
    const PeerId id{peers_made++};
    peers[id] = link;
    return id;
  }
};

// One end of it: a socket, and a ring for each direction. docs/protocol.md has what is said.
//
//   opening   until each side has the other's ring and bell; nothing is published before
//   open      messages go both ways
//   ended     the other side has left, its socket has been closed, or we have given the link up:
//             what it had published whole still arrives, then PayloadLost and PeerLost are told,
//             and nothing comes any more
//   left      our caller has disconnected: nothing of it is heard any more
//
// After the last two the socket stays until neither side holds a payload of the other. Thread-
// compatible; calls the receiver from Receive() and TellEnd() only, `done` also from Send() and
// Pump(). It may call Send() and Disconnect() here then.
class SharedMemoryLink : public EventLoop::Handler {
 public:
  using Time = LinkCommons::Time;

  // Dials `to`, as `credentials` say: where no descriptor is left for it, again and again until the
  // greeting time is over. Who was dialled has that time to answer. `commons` outlives the link.
  SharedMemoryLink(LinkCommons* commons, LocalAddress to, LinkCredentials credentials, Time now);
  // Somebody dialled us, and has the greeting time to introduce himself.
  SharedMemoryLink(LinkCommons* commons, ControlSocket accepted, Time now);
  ~SharedMemoryLink() override;

  // kNone: of somebody who has not introduced himself.
  PeerId id() const { return id_; }
  bool dialled() const { return dialled_; }
  // Whether the receiver has heard of it, or our caller dialled: only they can disconnect it.
  bool known() const { return told_joined_; }
  bool left() const { return left_; }
  // Somebody who has not introduced himself.
  bool ungreeted() const { return id_ == PeerId::kNone && connected(); }
  // Whom we dialled, and who has not answered.
  bool unanswered() const { return dialled_ && connected() && !open_ && why_ended_.ok() && !left_; }
  Time deadline() const { return deadline_; }  // of both
  const absl::Status& why_ended() const { return why_ended_; }

  // Of one that was accepted, before anything else. RESOURCE_EXHAUSTED: it cannot be.
  absl::Status Watch();
  // Says what opens the link, as far as that is possible now; for the rest it is to be called again
  // from commons.retry_at on.
  void GoOn(Time now);
  // The socket has something, perhaps.
  bool noted() const { return noted_; }
  void ReadSocket();
  // Of somebody who has not introduced himself. kNone: without a word.
  void TurnAway(ControlPacket::Refusal refusal);
  // Of an unanswered() one, whose time is over.
  void GiveUpOpening();

  void Send(PendingSend* send);
  void Disconnect();
  // And closes it now, whatever the peer still reads.
  void CutOff();
  // Ends it because of `why`, which is nobody's fault. Where payloads are lent, on either side, the
  // socket stays until they have come back.
  void GiveUp(const absl::Status& why);

  // At most so many messages or fragments. How many.
  int Receive(int messages_max);
  // Returns taken, and more sent where there is room. How many returns.
  int Pump();
  void Withdraw();
  // Of an ended link, once: what is left arrives, PayloadLost, PeerLost. How many events.
  int TellEnd();
  // Of a link that has ended or was left: closes it when nobody holds a payload any more. True: it
  // may go.
  bool Settle();
  // A lease has ended.
  void Return(uint32_t loan);
  int loans_out() const { return writer_.loans_out(); }

  bool HasNews() const;
  void SetSleeps();
  void StayAwake();
  // Wakes the other side if it sleeps; see message_ring::Settle().
  void WakeReader();
  void WakeWriter();

 private:
  void Ready(uint32_t) override;

  bool connected() const { return socket_.has_value(); }
  bool IsOpen() const { return open_ && connected(); }
  bool MaySend() const;
  bool Readable() const;
  bool Muted() const { return left_ || told_end_; }
  bool HoldsNothing() const { return writer_.loans_out() == 0 && leases_ == 0; }

  void Dial(Time now);
  void TryLater(const absl::Status& why);
  absl::Status SayNext();
  void SeeWhetherOpen();
  absl::Status Hear(ControlSocket::Received received);
  absl::Status HearIntroduction(const ControlPacket& packet);
  bool IsLetIn() const;
  void TellJoined();
  // Never OK.
  absl::Status HearRefusal(ControlPacket::Refusal refusal) const;
  void WatchForRoom(bool watch);
  void Fail(const absl::Status& why);

  absl::Status Take(const RingDescriptor& descriptor);
  void SendWaiting();
  int TakeReturns();
  void MarkPublished();
  void MarkReturned();
  void RingForReader();
  void Ring();

  void End(absl::Status why);
  void Close(const absl::Status& why);
  void Break(const absl::Status& why);

  LinkCommons& commons_;
  const bool dialled_;  // by us
  const std::optional<LocalAddress> to_;
  Time deadline_;  // for the introduction of who dialled us; or for our dialling, then its answer
  PeerId id_;
  LinkCredentials credentials_;  // of who dialled: ours, or those that he introduced himself with

  std::optional<ControlSocket> socket_;
  std::optional<Doorbell> bell_;  // the other side's
  LinkWriter writer_;
  LinkReader reader_;

  int said_ = 0;  // of what opens the link
  bool open_ = false;
  bool told_joined_;
  bool noted_ = false;
  std::optional<Time> retry_at_;  // what could not be said, or sent, waits until then
  bool socket_full_ = false;
  absl::Status failed_;     // the socket takes nothing any more; what it brings says why
  absl::Status why_ended_;  // OK: it has not
  bool told_end_ = false;
  bool broken_ = false;  // nothing that lies in its ring is believed any more
  bool left_ = false;
  bool gave_up_ = false;  // though the socket is open: something that came over it was lost
  bool said_bye_ = false;
  bool heard_bye_ = false;
  // Since the other side was rung for last: it may be asleep and wait for that.
  bool published_ = false;
  bool returned_ = false;
  bool listed_published_ = false;  // in commons_.published
  bool listed_returned_ = false;   // in commons_.returned
  int leases_ = 0;
};

}  // namespace muster
