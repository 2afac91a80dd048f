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

// The payloads that peers have lent to this transport's receiver, over all links. Numbers are
// reused, so that no lease allocates. Thread-compatible.
class LeaseTable {
 public:
  struct Lease {
    SharedMemoryLink* link = nullptr;  // null: the link is gone
    uint32_t loan = 0;                 // the sender's number of the loan
    MappedSlab slab;                   // contains the payload
  };

  uint64_t Add(Lease lease);
  Lease Take(uint64_t number);
  // Call when `link` is being destroyed.
  void Forget(const SharedMemoryLink* link);
  bool empty() const { return leases_.size() == free_.size(); }

 private:
  std::vector<Lease> leases_;
  std::vector<uint32_t> free_;
};

// The state that the links of one transport share. Used on the transport's thread.
struct LinkCommons {
  using Time = std::chrono::steady_clock::time_point;
  // The delay before an attempt that lacked descriptors or memory is repeated. They become free
  // when something else is closed, and nothing reports that.
  static constexpr std::chrono::milliseconds kRetryTime{100};

  Transport* transport;  // owns the leases
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
  std::atomic<int64_t> malformed = 0;    // read by any thread
  std::atomic<int64_t> turned_away = 0;  // connections that were refused

  // The transport's pending work.
  bool sockets_due = false;     // a socket of some link may have a packet
  Time retry_at = Time::max();  // when some link must GoOn()
  bool ends_due = false;        // a link has ended, or no longer waits for anything
  // Links with readers that may sleep and wait for messages.
  std::vector<SharedMemoryLink*> published;
  // Links with writers that may sleep and wait for room and returns.
  std::vector<SharedMemoryLink*> returned;

  PeerId NewPeer(SharedMemoryLink* link) {
    const PeerId id{peers_made++};
    peers[id] = link;
    return id;
  }
};

// One end of a link: a socket, and a ring for each direction. docs/protocol.md has the protocol.
//
//   opening   until each side has the other's ring and bell; nothing is published before.
//   open      messages travel in both directions.
//   ended     the other side has left, its socket was closed, or this side gave the link up:
//             fully published messages still arrive, then PayloadLost and PeerLost are called,
//             and nothing more arrives
//   left      our caller has disconnected: the receiver gets no more callbacks for this link
//
// A link that was open keeps its socket in the last two states until neither side holds a payload
// of the other. The socket closes earlier if the peer closes it or breaks the protocol, or after
// CutOff().
//
// Thread-compatible. Calls the receiver only from Receive() and TellEnd(), and `done` only from
// Send() and Pump(). These callbacks may call Send() and Disconnect(). Sends that end in another
// call wait for PendingSends::CallFinished().
class SharedMemoryLink : public EventLoop::Handler {
 public:
  using Time = LinkCommons::Time;

  // A link that GoOn() dials: to `to`, with `credentials`. If this process has no descriptor left,
  // GoOn() dials again until the greeting time is over. The dialled peer then has the greeting time
  // to answer. `commons` must outlive the link.
  SharedMemoryLink(LinkCommons* commons, LocalAddress to, LinkCredentials credentials, Time now);
  // A peer dialled this process. It must introduce itself within the greeting time.
  SharedMemoryLink(LinkCommons* commons, ControlSocket accepted, Time now);
  ~SharedMemoryLink() override;

  // The id of the peer; kNone if it has not introduced itself.
  PeerId id() const { return id_; }
  bool dialled() const { return dialled_; }
  // Whether the receiver knows the link, or our caller dialled it. Only such links can be
  // disconnected.
  bool known() const { return told_joined_; }
  bool left() const { return left_; }
  // The peer connected and has not introduced itself.
  bool ungreeted() const { return id_ == PeerId::kNone && connected(); }
  // This side dialled, and the peer has not answered.
  bool unanswered() const { return dialled_ && connected() && !open_ && why_ended_.ok() && !left_; }
  Time deadline() const { return deadline_; }  // for ungreeted() and unanswered()
  const absl::Status& why_ended() const { return why_ended_; }

  // Call first on an accepted link. Returns RESOURCE_EXHAUSTED if the socket cannot be watched.
  absl::Status Watch();
  // Dials if this side must and has not, and sends the packets that open the link, as far as
  // possible now. Call it again from commons.retry_at on for the rest.
  void GoOn(Time now);
  // Whether the socket may have a packet.
  bool noted() const { return noted_; }
  void ReadSocket();
  // Refuses a peer that has not introduced itself. kNone closes without a packet.
  void TurnAway(ControlPacket::Refusal refusal);
  // Gives up an unanswered() link after its deadline.
  void GiveUpOpening();

  void Send(PendingSend* send);
  void Disconnect();
  // Disconnects and closes the socket now, although the peer may still read payloads.
  void CutOff();
  // Ends the link because of `why`, without blaming the peer. If either side has lent payloads, the
  // socket stays open until they have been returned.
  void GiveUp(const absl::Status& why);

  // Takes at most `messages_max` messages or fragments. Returns the number of events.
  int Receive(int messages_max);
  // Takes incoming returns and sends waiting messages as far as there is room. Returns the number
  // of returns.
  int Pump();
  void Withdraw();
  // Reports the end of an ended link, once: delivers the remaining messages, then calls PayloadLost
  // and PeerLost. Returns the number of events.
  int TellEnd();
  // Closes an ended or left link when neither side holds a payload any more. Returns true when the
  // link may be destroyed.
  bool Settle();
  // Ends a lease.
  void Return(uint32_t loan);
  int loans_out() const { return writer_.loans_out(); }

  bool HasNews() const;
  void SetSleeps();
  void StayAwake();
  // Both wake the other side if it sleeps; see message_ring::Settle().
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
  // Never returns OK.
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
  const bool dialled_;  // by this side
  const std::optional<LocalAddress> to_;
  Time deadline_;  // of ungreeted(): for the introduction; of unanswered(): for dialling, then for
                   // the answer
  PeerId id_;
  // The credentials of the dialling side: ours, or those with which the peer introduced itself.
  LinkCredentials credentials_;

  std::optional<ControlSocket> socket_;
  std::optional<Doorbell> bell_;  // belongs to the other side
  LinkWriter writer_;
  LinkReader reader_;

  int said_ = 0;  // the number of opening packets sent
  bool open_ = false;
  bool told_joined_;
  bool noted_ = false;
  std::optional<Time> retry_at_;  // unsent packets and messages wait until then
  bool socket_full_ = false;
  absl::Status failed_;     // the socket accepts nothing more; packets still to be read may say why
  absl::Status why_ended_;  // OK: the link has not ended
  bool told_end_ = false;
  bool broken_ = false;  // nothing in the peer's ring is trusted any more
  bool left_ = false;
  bool gave_up_ = false;  // GiveUp() left the socket open; something that came over it was lost
  bool said_bye_ = false;
  bool heard_bye_ = false;
  // Changes since the last ring: the other side may sleep and wait for them.
  bool published_ = false;
  bool returned_ = false;
  bool listed_published_ = false;  // in commons_.published
  bool listed_returned_ = false;   // in commons_.returned
  int leases_ = 0;
};

}  // namespace muster
