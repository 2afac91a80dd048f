#include "lib/transport/shm/shared_memory_link.h"

#include <glog/logging.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using Kind = ControlPacket::Kind;
using Refusal = ControlPacket::Refusal;

constexpr int kOpeningPackets = 3;  // HELLO, INTRODUCE (only from the dialling side), BELL
// Send() wakes a sleeping reader at once if the message has at least this many bytes. For smaller
// ones the next Progress() or Wait() wakes it, so that with one processor the reader finds all of
// the turn's messages at once.
constexpr uint64_t kWorthASwitch = 64 << 10;

}  // namespace

uint64_t LeaseTable::Add(Lease lease) {
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(leases_.size()));
    leases_.emplace_back();
  }
  const uint32_t number = free_.back();
  free_.pop_back();
  leases_[number] = std::move(lease);
  return number;
}

LeaseTable::Lease LeaseTable::Take(uint64_t number) {
  free_.push_back(static_cast<uint32_t>(number));
  return std::exchange(leases_[number], {});
}

void LeaseTable::Forget(const SharedMemoryLink* link) {
  for (Lease& lease : leases_) {
    if (lease.link == link) lease.link = nullptr;
  }
}

SharedMemoryLink::SharedMemoryLink(LinkCommons* commons, LocalAddress to,
                                   LinkCredentials credentials, Time now)
    : commons_(*commons),
      dialled_(true),
      to_(std::move(to)),
      deadline_(now + absl::ToChronoNanoseconds(commons->greeting_time)),
      id_(commons->NewPeer(this)),
      credentials_(std::move(credentials)),
      writer_(commons->slabs.get(), &commons->sends),
      told_joined_(true) {}

SharedMemoryLink::SharedMemoryLink(LinkCommons* commons, ControlSocket accepted, Time now)
    : commons_(*commons),
      dialled_(false),
      deadline_(now + absl::ToChronoNanoseconds(commons->greeting_time)),
      id_(PeerId::kNone),
      socket_(std::move(accepted)),
      writer_(commons->slabs.get(), &commons->sends),
      told_joined_(false) {}

SharedMemoryLink::~SharedMemoryLink() {
  Close(absl::CancelledError("disconnected"));
  commons_.leases.Forget(this);
  if (id_ != PeerId::kNone) commons_.peers.erase(id_);
  std::erase(commons_.published, this);
  std::erase(commons_.returned, this);
}

// ---- Opening.

absl::Status SharedMemoryLink::Watch() {
  noted_ = commons_.sockets_due = true;  // the socket may already have a packet
  return commons_.loop->Watch(socket_->fd(), EPOLLIN | EPOLLET, this);
}

void SharedMemoryLink::GoOn(Time now) {
  if (retry_at_.has_value() && now < *retry_at_) {
    commons_.retry_at = std::min(commons_.retry_at, *retry_at_);
    return;
  }
  retry_at_.reset();
  const auto done = [this] {
    return said_ == kOpeningPackets || left_ || !why_ended_.ok() || !failed_.ok() ||
           id_ == PeerId::kNone;
  };
  if (done()) return;
  if (!socket_.has_value()) Dial(now);
  if (socket_.has_value() && !writer_.has_memory()) {
    if (const absl::Status made = writer_.MakeMemory(); !made.ok()) GiveUp(made);
  }
  // The next call after a TryLater() continues with the same packet, because said_ is unchanged.
  while (socket_.has_value() && !done()) {
    const absl::Status said = SayNext();
    if (absl::IsResourceExhausted(said) || absl::IsAborted(said)) return TryLater(said);
    if (said.ok()) {
      ++said_;
    } else {
      Fail(said);
    }
  }
  SeeWhetherOpen();
}

void SharedMemoryLink::TryLater(const absl::Status& why) {
  LOG_EVERY_T(WARNING, 1) << "shared memory: a link must wait, and is tried again: " << why;
  retry_at_ = std::chrono::steady_clock::now() + LinkCommons::kRetryTime;
  commons_.retry_at = std::min(commons_.retry_at, *retry_at_);
}

void SharedMemoryLink::Dial(Time now) {
  absl::StatusOr<ControlSocket> socket = ControlSocket::Connect(to_->SocketName());
  if (absl::IsResourceExhausted(socket.status())) {
    if (now < deadline_) return TryLater(socket.status());
    return GiveUp(absl::ResourceExhaustedError(
        absl::StrCat("the peer could not be dialled: no file descriptors or memory are left here, "
                     "or too many connections wait there: ",
                     socket.status().message(), ": raise this process's limit (ulimit -n)")));
  }
  if (!socket.ok()) return End(socket.status());
  socket_ = *std::move(socket);
  deadline_ = now + absl::ToChronoNanoseconds(commons_.greeting_time);
  if (const absl::Status watched = Watch(); !watched.ok()) GiveUp(watched);
}

absl::Status SharedMemoryLink::SayNext() {
  switch (said_) {
    case 0:
      return socket_->Send({.kind = Kind::kHello, .bytes = message_ring::kBytes}, writer_.file());
    case 1:
      if (!dialled_) return absl::OkStatus();
      return socket_->Send(
          {.kind = Kind::kIntroduce, .who = credentials_.self, .token = credentials_.token});
    default:
      return socket_->Send({.kind = Kind::kBell}, commons_.loop->bell().fd());
  }
}

void SharedMemoryLink::SeeWhetherOpen() {
  open_ = said_ == kOpeningPackets && reader_.mapped() && bell_.has_value();
}

void SharedMemoryLink::TurnAway(Refusal refusal) {
  commons_.turned_away.fetch_add(1, std::memory_order_relaxed);
  if (refusal != Refusal::kNone) (void)socket_->Send({.kind = Kind::kRefused, .refusal = refusal});
  Close(absl::OkStatus());
  commons_.ends_due = true;
}

// The kernel accepts connections for a process that is stopped or hangs. Only an answer shows that
// the process is alive.
void SharedMemoryLink::GiveUpOpening() {
  const std::string time = absl::FormatDuration(commons_.greeting_time);
  GiveUp(said_ == kOpeningPackets
             ? absl::UnavailableError(
                   absl::StrCat("the peer was dialled and did not answer within ", time,
                                ": its process may be stopped, or its thread may hang"))
             : absl::ResourceExhaustedError(absl::StrCat(
                   "the packets that open the link could not be sent within ", time,
                   ": no memory is left, or too many files are in transit between this "
                   "user's processes")));
}

// ---- The socket.

void SharedMemoryLink::Ready(uint32_t) { noted_ = commons_.sockets_due = true; }

// The socket is watched for room only while it is full: otherwise each read of the peer would wake
// this thread.
void SharedMemoryLink::WatchForRoom(bool watch) {
  if (std::exchange(socket_full_, watch) == watch) return;
  commons_.loop->Change(socket_->fd(), EPOLLIN | EPOLLET | (watch ? uint32_t{EPOLLOUT} : 0), this);
}

// Records that the socket accepts nothing more. The packets that the other end sent before, perhaps
// with the reason, must still be read.
void SharedMemoryLink::Fail(const absl::Status& why) {
  failed_ = why;
  noted_ = commons_.sockets_due = true;
}

void SharedMemoryLink::ReadSocket() {
  noted_ = false;
  if (socket_.has_value()) WatchForRoom(false);
  while (socket_.has_value()) {
    absl::StatusOr<std::optional<ControlSocket::Received>> heard = socket_->Receive();
    if (heard.ok() && !heard->has_value()) {
      if (failed_.ok()) return;
      heard = failed_;
    }
    const absl::Status believed = heard.ok() ? Hear(**std::move(heard)) : heard.status();
    if (absl::IsInvalidArgument(believed)) return Break(believed);
    if (absl::IsUnavailable(believed)) {
      End(believed);
      return Close(why_ended_);
    }
    if (!believed.ok()) GiveUp(believed);
  }
}

absl::Status SharedMemoryLink::Hear(ControlSocket::Received received) {
  const ControlPacket& packet = received.packet;
  if (packet.kind == Kind::kHello) {
    if (reader_.mapped()) return absl::InvalidArgumentError("a HELLO too many");
    if (packet.bytes != message_ring::kBytes) {
      return absl::InvalidArgumentError(absl::StrCat("a HELLO with a ring of ", packet.bytes,
                                                     " bytes instead of ", message_ring::kBytes));
    }
    return reader_.Map(received.file);
  }
  if (packet.kind == Kind::kRefused) return HearRefusal(packet.refusal);
  if (!reader_.mapped()) return absl::InvalidArgumentError("a packet before the HELLO");
  if (packet.kind == Kind::kIntroduce) return HearIntroduction(packet);
  if (id_ == PeerId::kNone) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packet of kind ", static_cast<int>(packet.kind),
                     " before the introduction, which has kind ",
                     static_cast<int>(Kind::kIntroduce), " and names the peer"));
  }
  if (packet.kind == Kind::kSlab || packet.kind == Kind::kWithdraw) {
    // Some slabs were lost, so later packets about slabs mean nothing.
    if (gave_up_) return absl::OkStatus();
    if (packet.kind == Kind::kWithdraw) return reader_.RemoveSlab(packet.slab);
    return reader_.AddSlab(packet.slab, packet.bytes, received.file);
  }
  if (packet.kind == Kind::kBell) {
    if (bell_.has_value()) return absl::InvalidArgumentError("a BELL too many");
    ASSIGN_OR_RETURN(bell_, Doorbell::Adopt(std::move(received.file)));
    SeeWhetherOpen();
    return absl::OkStatus();
  }
  if (!open_ || heard_bye_) return absl::InvalidArgumentError("a BYE too early, or too many");
  heard_bye_ = true;
  End(absl::UnavailableError("the peer disconnected"));
  return absl::OkStatus();
}

// The token may be sent in clear: the kernel guarantees that only two processes of one user, or of
// root, share the socket.
absl::Status SharedMemoryLink::HearIntroduction(const ControlPacket& packet) {
  if (id_ != PeerId::kNone) return absl::InvalidArgumentError("an introduction too many");
  credentials_ = {.self = packet.who, .token = packet.token};
  if (!IsLetIn()) {
    LOG_EVERY_T(WARNING, 1) << "shared memory: " << NameOf(packet.who)
                            << " is not let in: its session is not open here, or its token differs";
    TurnAway(Refusal::kNotLetIn);
    return absl::OkStatus();
  }
  // This side allocates its ring only for a peer that it has accepted.
  RETURN_IF_ERROR(writer_.MakeMemory());
  id_ = commons_.NewPeer(this);
  return absl::OkStatus();
}

bool SharedMemoryLink::IsLetIn() const {
  const LinkIdentity& who = credentials_.self;
  const SessionToken* token = commons_.sessions.Find(who.job, who.generation);
  return token != nullptr && *token == credentials_.token;
}

// Reports the peer to the receiver. If the session was closed since the peer introduced itself, the
// link is left instead, and the peer sees its socket closed.
void SharedMemoryLink::TellJoined() {
  if (IsLetIn()) {
    told_joined_ = true;
    return commons_.receiver->PeerJoined(id_, credentials_.self);
  }
  LOG_EVERY_T(WARNING, 1) << "shared memory: " << NameOf(credentials_.self)
                          << " is not let in: its session was closed meanwhile";
  commons_.turned_away.fetch_add(1, std::memory_order_relaxed);
  Disconnect();
}

absl::Status SharedMemoryLink::HearRefusal(Refusal refusal) const {
  if (!dialled_ || reader_.mapped()) return absl::InvalidArgumentError("a refusal too late");
  if (refusal == Refusal::kFull) {
    return absl::ResourceExhaustedError(
        "the peer accepts no more links: it has too many, or no file descriptor or memory is left "
        "there");
  }
  return absl::PermissionDeniedError(
      "not let in: no such session is open there, or its token differs");
}

// ---- The end.

void SharedMemoryLink::End(absl::Status why) {
  commons_.ends_due = true;
  if (!why_ended_.ok()) return;
  why_ended_ = Annotate(why, "shared memory");
  writer_.CancelWaiting(why_ended_);
}

void SharedMemoryLink::Close(const absl::Status& why) {
  if (!socket_.has_value()) return;
  commons_.loop->Unwatch(socket_->fd(), this);
  socket_.reset();
  writer_.CancelWaiting(why);
  (void)writer_.TakeReturns();  // take what was returned before the end
  writer_.EndLoans(why);
}

// A peer that has not introduced itself is refused with kFull, because it is not at fault. The
// receiver does not know it.
//
// Closing the socket returns everything that is lent. The owners would then write to memory that is
// still being read. So while anything is lent the socket stays open, and Settle() sends BYE.
void SharedMemoryLink::GiveUp(const absl::Status& why) {
  if (ungreeted()) {
    LOG_EVERY_T(WARNING, 1) << "shared memory: refused a connection: " << why;
    return TurnAway(Refusal::kFull);
  }
  End(why);
  if (IsOpen() && failed_.ok() && !HoldsNothing()) {
    gave_up_ = true;
  } else {
    Close(why_ended_);
  }
}

// Ends the link of a peer that broke the protocol, and closes the socket at once. Memory lent in
// either direction may then change under its reader. Such a peer could change it anyway.
void SharedMemoryLink::Break(const absl::Status& why) {
  commons_.malformed.fetch_add(1, std::memory_order_relaxed);
  LOG_EVERY_T(WARNING, 1) << "shared memory: a peer broke the protocol and was disconnected: "
                          << why;
  End(absl::UnavailableError(absl::StrCat("the peer broke the protocol: ", why.message())));
  broken_ = true;
  Close(why_ended_);
}

void SharedMemoryLink::Disconnect() {
  left_ = true;
  const absl::Status why = absl::CancelledError("disconnected");
  writer_.CancelWaiting(why);
  (void)reader_.DropArriving();
  // An open link may have payloads in use on either side, so Settle() closes it later.
  if (!open_) Close(why);
  commons_.ends_due = true;
}

void SharedMemoryLink::CutOff() {
  Disconnect();
  Close(absl::CancelledError("disconnected"));
}

int SharedMemoryLink::TellEnd() {
  if (why_ended_.ok() || Muted()) return 0;
  // Fully published messages are delivered before the end is reported. The receiver may disconnect
  // in any of these calls, and then gets no further callback.
  int events = Receive(message_ring::kEntries);
  const std::optional<WireHeader> lost = reader_.DropArriving();
  if (lost.has_value()) {
    commons_.receiver->PayloadLost(id_, *lost);
    ++events;
  }
  if (Muted()) return events;
  told_end_ = true;
  if (!told_joined_) return events;  // it ended before the receiver knew it
  commons_.receiver->PeerLost(id_, why_ended_);
  return events + 1;
}

// Closes the socket if neither side holds a payload. That tells the peer, so no BYE is needed.
// Otherwise sends BYE once.
bool SharedMemoryLink::Settle() {
  if (!Muted()) return id_ == PeerId::kNone && !connected();
  if (!connected()) return true;
  if (HoldsNothing()) {
    Close(absl::CancelledError("disconnected"));
    return true;
  }
  if (said_bye_ || heard_bye_ || !failed_.ok() || retry_at_.has_value()) return false;
  const absl::Status said = socket_->Send({.kind = Kind::kBye});
  said_bye_ = said.ok();
  if (absl::IsResourceExhausted(said)) {
    WatchForRoom(true);
  } else if (absl::IsAborted(said)) {
    TryLater(said);
  } else if (!said.ok()) {
    Fail(said);
  }
  return false;
}

// ---- Sending.

void SharedMemoryLink::Send(PendingSend* send) {
  if (!why_ended_.ok()) return commons_.sends.Finish(send, why_ended_);
  writer_.Add(send);
  SendWaiting();
}

bool SharedMemoryLink::MaySend() const {
  return IsOpen() && failed_.ok() && why_ended_.ok() && !left_ && !retry_at_.has_value();
}

// Publishes the waiting messages as far as possible now. A `done` may send more messages, and may
// disconnect.
void SharedMemoryLink::SendWaiting() {
  while (writer_.first() != nullptr && MaySend()) {
    PendingSend* send = writer_.first();
    const LinkWriter::Published published = writer_.Publish(*socket_);
    MarkPublished();                    // a fragment counts too
    const bool lent = send->slab != 0;  // a lent payload ends when the reader returns it
    if (send->header.length >= kWorthASwitch) RingForReader();
    switch (published) {
      case LinkWriter::Published::kAll:
        if (!lent) commons_.sends.Finish(send, absl::OkStatus());
        break;
      case LinkWriter::Published::kPart:
        return;
      case LinkWriter::Published::kSocketFull:
        return WatchForRoom(true);
      case LinkWriter::Published::kTryLater:
        return TryLater(
            absl::AbortedError("too many files are in transit between this user's processes, or "
                               "no memory is left: a slab cannot be handed over yet"));
      case LinkWriter::Published::kSocketDead:
        return Fail(absl::UnavailableError("the peer's socket is closed"));
    }
  }
}

int SharedMemoryLink::Pump() {
  if (!IsOpen()) return 0;
  const int returns = writer_.loans_out() > 0 ? TakeReturns() : 0;
  if (writer_.first() != nullptr) SendWaiting();
  return returns;
}

int SharedMemoryLink::TakeReturns() {
  const absl::StatusOr<int> taken = writer_.TakeReturns();
  if (!taken.ok()) {
    Break(taken.status());
    return 0;
  }
  if (Muted() && writer_.loans_out() == 0) commons_.ends_due = true;
  return *taken;
}

void SharedMemoryLink::Withdraw() {
  if (IsOpen() && failed_.ok()) writer_.Withdraw(*socket_);
}

// ---- Receiving.

// Whether messages can be read. If the other side has closed its socket, they can be, even if its
// bell never came.
bool SharedMemoryLink::Readable() const {
  if (broken_ || id_ == PeerId::kNone) return false;
  return connected() ? open_ : reader_.mapped();
}

int SharedMemoryLink::Receive(int messages_max) {
  if (!Readable()) return 0;
  int events = 0;
  // PeerJoined comes before the first message of the peer.
  if (!told_joined_ && !Muted()) {
    TellJoined();
    ++events;
  }
  std::array<std::byte, RingDescriptor::kBytes> bytes;
  for (int taken = 0; taken < messages_max && Readable() && reader_.Next(bytes); ++taken) {
    ++events;
    const absl::StatusOr<RingDescriptor> descriptor = DecodeDescriptor(bytes);
    const absl::Status believed = descriptor.ok() ? Take(*descriptor) : descriptor.status();
    if (!believed.ok()) Break(believed);
  }
  return events;
}

absl::Status SharedMemoryLink::Take(const RingDescriptor& descriptor) {
  MarkReturned();
  const bool in_slab = descriptor.slab != 0;
  // The announcement came before the descriptor.
  if (in_slab && !reader_.Knows(descriptor.slab)) ReadSocket();
  // A peer that closed its socket may already reuse its payloads, so they are not read.
  if (in_slab && !connected()) return absl::OkStatus();
  if (Muted() || (in_slab && gave_up_)) {
    reader_.Drop(descriptor);
    return absl::OkStatus();
  }
  const auto lend = [this](uint32_t loan, MappedSlab slab) {
    ++leases_;
    return PayloadLease(commons_.transport, commons_.leases.Add({this, loan, std::move(slab)}));
  };
  return reader_.Take(descriptor, id_, *commons_.receiver, lend, commons_.crew);
}

void SharedMemoryLink::Return(uint32_t loan) {
  --leases_;
  reader_.Return(loan);
  MarkReturned();
  if (Muted() && leases_ == 0) commons_.ends_due = true;
}

void SharedMemoryLink::MarkPublished() {
  published_ = true;
  if (!std::exchange(listed_published_, true)) commons_.published.push_back(this);
}

void SharedMemoryLink::MarkReturned() {
  returned_ = true;
  if (!std::exchange(listed_returned_, true)) commons_.returned.push_back(this);
}

// ---- Sleeping.

bool SharedMemoryLink::HasNews() const {
  if (Readable() && reader_.HasMessage()) return true;
  if (!IsOpen()) return false;
  return writer_.HasReturn() || (MaySend() && writer_.CanPublish(socket_full_));
}

void SharedMemoryLink::SetSleeps() {
  if (!IsOpen()) return;
  reader_.SetSleeps(true);
  if (writer_.first() != nullptr || writer_.loans_out() > 0) writer_.SetSleeps(true);
}

void SharedMemoryLink::StayAwake() {
  if (!IsOpen()) return;
  reader_.SetSleeps(false);
  writer_.SetSleeps(false);
}

void SharedMemoryLink::WakeReader() {
  listed_published_ = false;
  if (std::exchange(published_, false)) RingForReader();
}

void SharedMemoryLink::WakeWriter() {
  listed_returned_ = false;
  if (std::exchange(returned_, false) && IsOpen() && reader_.TakeWriterSleeps()) Ring();
}

void SharedMemoryLink::RingForReader() {
  if (IsOpen() && writer_.TakeReaderSleeps()) Ring();
}

// One ring wakes the other side's thread, which then checks both directions and sees all earlier
// changes. The flags are cleared first, because the other side may fall asleep again before this
// side checks.
void SharedMemoryLink::Ring() {
  published_ = returned_ = false;
  bell_->Ring();
}

}  // namespace muster
