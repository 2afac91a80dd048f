#include "lib/transport/shared_memory_transport.h"

#include <glog/logging.h>
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/status/status.h"
#include "lib/transport/shared_slab.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;
using message_ring::kFragmentBytesMax;
using Kind = ControlPacket::Kind;

constexpr auto kGoodbyeTime = std::chrono::milliseconds(200);
constexpr absl::Duration kRetryTime = absl::Milliseconds(1);
constexpr absl::Duration kSleepMax = absl::Hours(24);
// A busy transport looks at its sockets this rarely; a sleeping one is woken by them.
constexpr int64_t kSocketsEvery = 64;
constexpr int kMessagesPerTurn = 16;  // of one link, before the next has its turn
constexpr int kBusyTurnsMax = 8;      // that a writer who waits for room sleeps on
// Whoever is woken for less, on the only processor perhaps, would rather find all of the turn's.
constexpr uint64_t kWorthASwitch = 64 << 10;
constexpr size_t kSlabsPerLinkMax = 4096;  // what a peer can make us map

}  // namespace

// Keeps the slabs beyond the transport, if need be.
class SharedMemoryTransport::SlabRegistration : public MemoryRegistration {
 public:
  SlabRegistration(std::shared_ptr<RegisteredSlabs> slabs, uint32_t number)
      : slabs_(std::move(slabs)), number_(number) {}
  ~SlabRegistration() override { slabs_->Unregister(number_); }

 private:
  const std::shared_ptr<RegisteredSlabs> slabs_;
  const uint32_t number_;
};

// `copied` bytes of it are in the area; or it is lent, from `slab`.
struct SharedMemoryTransport::Outgoing {
  WireHeader header;
  absl::Span<const std::byte> payload;
  size_t copied = 0;
  uint32_t slab = 0;
  SendDone done;
  Outgoing* next = nullptr;  // in the queue of its link
};

struct SharedMemoryTransport::Link {
  std::optional<ControlSocket> socket;  // none: not yet, or no more
  std::optional<Doorbell> bell;         // the other side's, once it has come
  const bool outgoing;
};

struct SharedMemoryTransport::OutgoingLink : Link {
  OutgoingLink(PeerId id, LocalAddress address)
      : Link{.socket = std::nullopt, .bell = std::nullopt, .outgoing = true},
        id(id),
        address(std::move(address)) {}

  bool is_open() const { return open && lost.ok(); }
  int loans_out() const { return static_cast<int>(message_ring::kReturns - free_loans.size()); }

  const PeerId id;
  const LocalAddress address;
  SealedMemory memory;
  MessageRingWriter ring;
  bool greeted = false;       // it has the link's memory
  bool open = false;          // and our bell
  bool disconnected = false;  // by our caller: only waits for what is lent
  bool socket_full = false;
  bool due = false;      // in published_
  int64_t woken_at = 0;  // of changes_
  absl::Status lost;     // why, once it is
  Outgoing* first = nullptr;
  Outgoing* last = nullptr;

  struct Announced {
    uint32_t slab = 0;
    int loans = 0;
  };
  std::vector<Announced> announced;
  std::vector<Outgoing*> loans;  // by their numbers; null: free
  std::vector<uint32_t> free_loans;
};

struct SharedMemoryTransport::IncomingLink : Link {
  explicit IncomingLink(ControlSocket accepted)
      : Link{.socket = std::move(accepted), .bell = std::nullopt, .outgoing = false} {}

  bool greeted() const { return !memory.memory().empty(); }
  bool is_open() const { return bell.has_value() && answered; }

  SealedMemory memory;
  MessageRingReader ring;
  ControlPacket::Nonce nonce = {};  // of the transport at the other end
  absl::flat_hash_map<uint32_t, std::shared_ptr<SealedMemory>> slabs;
  bool answered = false;  // it has our bell
  bool ended = false;     // nothing comes any more but what is in the ring
  bool broken = false;    // nor that
  bool due = false;       // in due_
  int64_t due_at = 0;     // of changes_: the last one
  // The message whose fragments arrive.
  bool arriving = false;
  WireHeader header;
  absl::Span<std::byte> place;  // empty: drop it
  uint64_t arrived = 0;
};

absl::StatusOr<std::unique_ptr<SharedMemoryTransport>> SharedMemoryTransport::Create(
    SharedMemoryTransportOptions options) {
  ASSIGN_OR_RETURN(LocalAddress address, LocalAddress::Make());
  ASSIGN_OR_RETURN(ControlSocket listener, ControlSocket::Listen(address.SocketName()));
  FileDescriptor events(epoll_create1(EPOLL_CLOEXEC));
  if (!events) {
    return absl::UnavailableError(absl::StrCat("shared memory: epoll: ", std::strerror(errno)));
  }
  ASSIGN_OR_RETURN(Doorbell bell, Doorbell::Create());
  return absl::WrapUnique(new SharedMemoryTransport(std::move(address), std::move(listener),
                                                    std::move(events), std::move(bell),
                                                    std::move(options.polling)));
}

SharedMemoryTransport::SharedMemoryTransport(LocalAddress address, ControlSocket listener,
                                             FileDescriptor events, Doorbell bell,
                                             PollBudgetOptions polling)
    : local_(std::move(address)),
      address_(local_.Encode()),
      listener_(std::move(listener)),
      events_(std::move(events)),
      bell_(std::move(bell)),
      budget_(std::move(polling)),
      slabs_(std::make_shared<RegisteredSlabs>()) {
  // The listener's edges are known by its address, those of others than links by none.
  AddEvent(listener_.fd(), EPOLLIN | EPOLLET, &listener_);
  AddEvent(bell_.fd(), EPOLLIN | EPOLLET, nullptr);
}

// What is lent is waited for, because its owner will take it for his own again.
SharedMemoryTransport::~SharedMemoryTransport() {
  CHECK_EQ(loans_.size(), free_loans_.size()) << "a lease outlives its transport";
  auto lent = [this] {
    return std::any_of(outgoing_.begin(), outgoing_.end(), [this](OutgoingLink* link) {
      if (link->is_open()) TakeReturns(*link);
      return link->is_open() && link->loans_out() > 0 && link->address.nonce != local_.nonce;
    });
  };
  for (auto& send : sends_) send->done = nullptr;
  const auto deadline = Clock::now() + kGoodbyeTime;
  while (lent() && Clock::now() < deadline) {
    PollSockets();
    sched_yield();
  }
}

bool SharedMemoryTransport::IsLocal(absl::string_view address) {
  const absl::StatusOr<LocalAddress> other = LocalAddress::Decode(address);
  if (!other.ok()) return false;
  const absl::StatusOr<LocalAddress> here = LocalAddress::Make();
  return here.ok() && here->Reaches(*other);
}

// ---- Connections.

absl::StatusOr<PeerId> SharedMemoryTransport::Connect(absl::string_view address) {
  ASSIGN_OR_RETURN(LocalAddress decoded, LocalAddress::Decode(address));
  const PeerId id{peers_made_++};
  auto link = std::make_unique<OutgoingLink>(id, std::move(decoded));
  outgoing_.push_back(link.get());
  OutgoingLink& opened = *(peers_[id] = std::move(link));
  ++opening_;
  if (local_.Reaches(opened.address)) {
    Open(opened);
  } else {
    Lose(opened, absl::UnavailableError("shared memory: the address is of another host, network "
                                        "namespace or user"));
  }
  return id;
}

// Where the other side's queue is full it is tried again by PollSockets().
void SharedMemoryTransport::Open(OutgoingLink& link) {
  if (!link.socket.has_value()) {
    absl::StatusOr<ControlSocket> socket = ControlSocket::Connect(link.address.SocketName());
    if (absl::IsResourceExhausted(socket.status())) return;
    if (!socket.ok()) return Lose(link, socket.status());
    link.socket = *std::move(socket);
    Watch(link);
  }
  if (link.memory.memory().empty()) {
    absl::StatusOr<SealedMemory> memory =
        SealedMemory::Create("muster-link", message_ring::kBytes, SealedMemory::Others::kWrite);
    if (!memory.ok()) return Lose(link, memory.status());
    link.memory = *std::move(memory);
    link.ring = MessageRingWriter(link.memory.memory());
    link.loans.resize(message_ring::kReturns);
    for (uint32_t i = message_ring::kReturns; i > 0; --i) link.free_loans.push_back(i - 1);
  }
  absl::Status said;
  if (!link.greeted) {
    said = link.socket->Send(
        {.kind = Kind::kHello, .bytes = message_ring::kBytes, .nonce = local_.nonce},
        link.memory.file());
    link.greeted = said.ok();
  }
  if (link.greeted) said = link.socket->Send({.kind = Kind::kBell}, bell_.fd());
  if (absl::IsResourceExhausted(said)) return;
  if (!said.ok()) return Lose(link, said);
  link.open = true;
  --opening_;
}

void SharedMemoryTransport::Disconnect(PeerId id) {
  OutgoingLink& link = Find(id);
  link.disconnected = true;
  CancelWaiting(link, absl::CancelledError("disconnected"));
  if (!link.open && link.lost.ok()) --opening_;
  reap_ = true;
}

SharedMemoryTransport::OutgoingLink& SharedMemoryTransport::Find(PeerId id) {
  auto found = peers_.find(id);
  CHECK(found != peers_.end() && !found->second->disconnected)
      << "no peer " << static_cast<int>(id);
  return *found->second;
}

// Its process's other links end with it, so that nothing of it is placed any more once the receiver
// has heard PeerLost.
void SharedMemoryTransport::Lose(OutgoingLink& link, absl::Status why) {
  if (!link.lost.ok()) return;
  if (!link.open && !link.disconnected) --opening_;
  link.lost = Annotate(why, "shared memory");
  Close(link);
  link.bell.reset();
  CancelWaiting(link, link.lost);
  for (Outgoing*& lent : link.loans) {
    if (lent != nullptr) FinishLater(std::exchange(lent, nullptr), link.lost);
  }
  if (link.disconnected) {
    reap_ = true;
    return;
  }
  for (auto& incoming : incoming_) {
    if (incoming->nonce == link.address.nonce) incoming->ended = ended_ = true;
  }
  lost_.push_back(link.id);
}

// ---- Sending.

void SharedMemoryTransport::Send(PeerId id, const WireHeader& header,
                                 absl::Span<const std::byte> payload, SendDone done) {
  CHECK_EQ(header.length, payload.size());
  OutgoingLink& link = Find(id);
  if (!link.lost.ok()) {
    if (done) done(link.lost);
    return;
  }
  if (free_sends_.empty()) {
    sends_.push_back(std::make_unique<Outgoing>());
    free_sends_.push_back(sends_.back().get());
  }
  Outgoing* send = free_sends_.back();
  free_sends_.pop_back();
  *send = {.header = header, .payload = payload, .done = std::move(done)};
  (link.first == nullptr ? link.first : link.last->next) = send;
  link.last = send;
  Pump(link);
}

// Sends what waits while there is room. `done` may send more, and disconnect.
void SharedMemoryTransport::Pump(OutgoingLink& link) {
  while (link.first != nullptr && link.is_open()) {
    Outgoing* send = link.first;
    const bool gone = Advance(link, *send);
    if (gone) link.first = std::exchange(send->next, nullptr);
    if (!std::exchange(link.due, true)) published_.push_back(&link);
    const bool lent = send->slab != 0;
    if (send->header.length >= kWorthASwitch && link.is_open()) WakeReader(link);
    if (!gone) return;
    if (!lent) Finish(send, absl::OkStatus());
  }
}

// The link may be lost after.
void SharedMemoryTransport::WakeReader(OutgoingLink& link) {
  if (!link.ring.TakeReaderSleeps()) return;
  if (!link.bell.has_value()) ReadSocket(link);  // it was sent before the reader could sleep
  if (!link.bell.has_value()) return;
  link.bell->Ring();
  link.woken_at = ++changes_;
}

// Whether all of it is on its way. The link may be lost after.
bool SharedMemoryTransport::Advance(OutgoingLink& link, Outgoing& send) {
  // Copied where everything that can be lent is: a loan may come back only when a later message of
  // this link has arrived.
  if (send.copied == 0 && send.payload.size() > kCopiedBytesMax && !link.free_loans.empty()) {
    if (const RegisteredSlabs::Slab* slab = slabs_->Holding(send.payload)) {
      return LendFromSlab(link, send, slab->number);
    }
  }
  return CopyToArea(link, send);
}

bool SharedMemoryTransport::LendFromSlab(OutgoingLink& link, Outgoing& send, uint32_t number) {
  if (!link.ring.HasRoom() || !Announce(link, number)) return false;
  const std::byte* slab = slabs_->Numbered(number)->slab->memory().data();
  const uint32_t loan = link.free_loans.back();
  link.free_loans.pop_back();
  link.loans[loan] = &send;
  send.slab = number;
  link.ring.Publish({.header = send.header,
                     .offset = static_cast<uint64_t>(send.payload.data() - slab),
                     .length = send.payload.size(),
                     .slab = number,
                     .loan = loan});
  return true;
}

bool SharedMemoryTransport::CopyToArea(OutgoingLink& link, Outgoing& send) {
  do {
    const auto fragment = send.payload.subspan(send.copied, kFragmentBytesMax);
    const MessageRingWriter::Place place = link.ring.PlaceInArea(fragment.size());
    if (place.memory.size() != fragment.size() || !link.ring.HasRoom()) return false;
    if (!fragment.empty()) std::memcpy(place.memory.data(), fragment.data(), fragment.size());
    link.ring.Publish({.header = send.header,
                       .offset = place.offset,
                       .length = fragment.size(),
                       .position = send.copied});
    send.copied += fragment.size();
  } while (send.copied < send.payload.size());
  return true;
}

// Whether Pump() would do something; the same conditions as Advance()'s.
bool SharedMemoryTransport::CanAdvance(const OutgoingLink& link) const {
  if (link.first == nullptr || !link.is_open() || !link.ring.HasRoom()) return false;
  const Outgoing& send = *link.first;
  if (send.copied == 0 && send.payload.size() > kCopiedBytesMax && !link.free_loans.empty() &&
      slabs_->Holding(send.payload) != nullptr) {
    return !link.socket_full;
  }
  const size_t bytes = std::min(send.payload.size() - send.copied, kFragmentBytesMax);
  return link.ring.PlaceInArea(bytes).memory.size() == bytes;
}

// Hands the slab to the peer before the first payload in it, and counts one payload more. False:
// not now, or never if the link is lost.
bool SharedMemoryTransport::Announce(OutgoingLink& link, uint32_t number) {
  auto known = std::find_if(link.announced.begin(), link.announced.end(),
                            [number](const auto& announced) { return announced.slab == number; });
  if (known != link.announced.end()) {
    ++known->loans;
    return true;
  }
  const SharedSlab& slab = *slabs_->Numbered(number)->slab;
  const absl::Status said = link.socket->Send(
      {.kind = Kind::kSlab, .slab = number, .bytes = slab.memory().size()}, slab.fd());
  if (said.ok()) {
    link.announced.push_back({number, 1});
  } else if (absl::IsResourceExhausted(said)) {
    WatchForRoom(link, true);
  } else {
    Lose(link, said);
  }
  return said.ok();
}

// Takes back the slabs that nobody registers any more, once no payload in them is out.
void SharedMemoryTransport::Withdraw(OutgoingLink& link) {
  std::erase_if(link.announced, [&](const OutgoingLink::Announced& announced) {
    if (announced.loans > 0 || slabs_->Numbered(announced.slab) != nullptr) return false;
    const absl::Status said = link.socket->Send({.kind = Kind::kWithdraw, .slab = announced.slab});
    if (absl::IsResourceExhausted(said)) slabs_->Remind();
    return !absl::IsResourceExhausted(said);
  });
}

int SharedMemoryTransport::TakeReturns(OutgoingLink& link) {
  int returns = 0;
  while (link.lost.ok()) {
    const std::optional<uint32_t> loan = link.ring.TakeReturn();
    if (!loan.has_value()) break;
    if (*loan >= link.loans.size() || link.loans[*loan] == nullptr) {
      malformed_.fetch_add(1, std::memory_order_relaxed);
      Lose(link, absl::UnavailableError(
                     absl::StrCat("the peer returned ", *loan, ", which it does not have")));
      break;
    }
    Outgoing* send = std::exchange(link.loans[*loan], nullptr);
    link.free_loans.push_back(*loan);
    for (auto& announced : link.announced) {
      if (announced.slab != send->slab) continue;
      if (--announced.loans == 0 && slabs_->Numbered(send->slab) == nullptr) slabs_->Remind();
    }
    if (link.disconnected && link.loans_out() == 0) reap_ = true;
    FinishLater(send, absl::OkStatus());
    ++returns;
  }
  return returns;
}

void SharedMemoryTransport::CancelWaiting(OutgoingLink& link, const absl::Status& why) {
  while (link.first != nullptr) {
    Outgoing* send = link.first;
    link.first = std::exchange(send->next, nullptr);
    FinishLater(send, why);
  }
}

void SharedMemoryTransport::Finish(Outgoing* send, const absl::Status& status) {
  SendDone done = std::move(send->done);
  free_sends_.push_back(send);
  if (done) done(status);
}

void SharedMemoryTransport::FinishLater(Outgoing* send, const absl::Status& status) {
  if (send->done) finished_.push_back({std::move(send->done), status});
  free_sends_.push_back(send);
}

absl::StatusOr<std::unique_ptr<Transport::MemoryRegistration>>
SharedMemoryTransport::RegisterMemory(absl::Span<std::byte> memory) {
  const std::shared_ptr<SharedSlab> slab = SharedSlab::Find(memory);
  if (slab == nullptr || slabs_->size() >= kSlabsPerLinkMax) {
    return std::make_unique<MemoryRegistration>();
  }
  return std::make_unique<SlabRegistration>(slabs_, slabs_->Register(slab));
}

// ---- Receiving.

int SharedMemoryTransport::Receive(IncomingLink& link, int messages_max) {
  std::array<std::byte, RingDescriptor::kBytes> bytes;
  int events = 0;
  // What an ended link holds needs no bell any more.
  const bool readable = link.is_open() || (link.ended && link.greeted());
  while (events < messages_max && readable && !link.broken && link.ring.Take(bytes)) {
    ++events;
    const absl::StatusOr<RingDescriptor> descriptor = DecodeDescriptor(bytes);
    const absl::Status taken = descriptor.ok() ? Take(link, *descriptor) : descriptor.status();
    if (!taken.ok()) Break(link, taken);
  }
  return events;
}

absl::Status SharedMemoryTransport::Take(IncomingLink& link, const RingDescriptor& descriptor) {
  MarkDue(link);
  if (descriptor.slab == 0) return TakeFragment(link, descriptor);
  return TakeFromSlab(link, descriptor);
}

absl::Status SharedMemoryTransport::TakeFragment(IncomingLink& link,
                                                 const RingDescriptor& fragment) {
  const WireHeader& header = fragment.header;
  // Compared as bytes: a scalar may be NaN.
  if (fragment.position != (link.arriving ? link.arrived : 0) ||
      (link.arriving && EncodeHeader(header) != EncodeHeader(link.header))) {
    return absl::InvalidArgumentError("a fragment that is not the next of its message");
  }
  if (!link.arriving) {
    link.arriving = true;
    link.header = header;
    link.arrived = 0;
    link.place =
        header.length > 0 ? receiver_->PlacePayload(header).memory : absl::Span<std::byte>();
    CHECK(link.place.empty() || link.place.size() == header.length);
  }
  if (!link.place.empty()) {
    std::memcpy(link.place.data() + link.arrived, link.ring.InArea(fragment).data(),
                fragment.length);
  }
  link.ring.Release(fragment);
  link.arrived += fragment.length;
  if (link.arrived < header.length) return absl::OkStatus();
  link.arriving = false;
  if (link.place.size() == header.length) receiver_->Received(header, link.place, {});
  return absl::OkStatus();
}

absl::Status SharedMemoryTransport::TakeFromSlab(IncomingLink& link,
                                                 const RingDescriptor& descriptor) {
  link.ring.Release(descriptor);
  if (link.arriving) return absl::InvalidArgumentError("a message amid another's fragments");
  if (!link.slabs.contains(descriptor.slab)) ReadSocket(link);  // announced before it was used
  // Whoever ended the link may have its payloads for his own again.
  if (link.ended) return absl::OkStatus();
  auto found = link.slabs.find(descriptor.slab);
  if (found == link.slabs.end()) {
    return absl::InvalidArgumentError(absl::StrCat("unknown slab ", descriptor.slab));
  }
  const absl::Span<std::byte> memory = found->second->memory();
  if (descriptor.offset > memory.size() || descriptor.length > memory.size() - descriptor.offset) {
    return absl::InvalidArgumentError(absl::StrCat(
        "bytes ", descriptor.offset, " + ", descriptor.length, " of a slab of ", memory.size()));
  }
  const absl::Span<const std::byte> payload = memory.subspan(descriptor.offset, descriptor.length);
  const PayloadPlace place = receiver_->PlacePayload(descriptor.header);
  CHECK(place.memory.empty() || place.memory.size() == payload.size());
  if (place.in_place && !place.memory.empty()) {
    receiver_->Received(descriptor.header, payload, Lend(link, descriptor.loan, found->second));
    return absl::OkStatus();
  }
  if (!place.memory.empty()) std::memcpy(place.memory.data(), payload.data(), payload.size());
  link.ring.Return(descriptor.loan);
  if (!place.memory.empty()) receiver_->Received(descriptor.header, place.memory, {});
  return absl::OkStatus();
}

PayloadLease SharedMemoryTransport::Lend(IncomingLink& link, uint32_t number,
                                         std::shared_ptr<SealedMemory> slab) {
  if (free_loans_.empty()) {
    free_loans_.push_back(static_cast<uint32_t>(loans_.size()));
    loans_.emplace_back();
  }
  const uint32_t loan = free_loans_.back();
  free_loans_.pop_back();
  loans_[loan] = {&link, number, std::move(slab)};
  return PayloadLease(this, loan);
}

void SharedMemoryTransport::Return(uint64_t loan) {
  Loan returned = std::exchange(loans_[loan], {});
  free_loans_.push_back(static_cast<uint32_t>(loan));
  if (returned.link == nullptr) return;
  returned.link->ring.Return(returned.number);
  MarkDue(*returned.link);
}

// The other side hears of it by its closed socket.
void SharedMemoryTransport::Break(IncomingLink& link, const absl::Status& why) {
  malformed_.fetch_add(1, std::memory_order_relaxed);
  LOG(WARNING) << "shared memory: a peer breaks the protocol and is cut off: " << why;
  Close(link);
  link.ended = link.broken = ended_ = true;
}

// ---- Sockets.

void SharedMemoryTransport::AddEvent(int fd, uint32_t what, void* whose) {
  epoll_event event{.events = what, .data = {.ptr = whose}};
  CHECK_EQ(epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event), 0) << std::strerror(errno);
}

void SharedMemoryTransport::AlsoWatch(int fd) { AddEvent(fd, EPOLLIN, nullptr); }

void SharedMemoryTransport::Watch(Link& link) {
  AddEvent(link.socket->fd(), EPOLLIN | EPOLLET, &link);
  sockets_due_ = true;
}

// Not left to close(): a child of fork() may still hold the socket, and its events name the link.
void SharedMemoryTransport::Close(Link& link) {
  if (!link.socket.has_value()) return;
  epoll_ctl(events_.get(), EPOLL_CTL_DEL, link.socket->fd(), nullptr);
  link.socket.reset();
}

// Not watched for otherwise: the peer's every look into its socket would wake us.
void SharedMemoryTransport::WatchForRoom(OutgoingLink& link, bool watch) {
  link.socket_full = watch;
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.ptr = static_cast<Link*>(&link)}};
  if (watch) event.events |= EPOLLOUT;
  const int changed = epoll_ctl(events_.get(), EPOLL_CTL_MOD, link.socket->fd(), &event);
  CHECK_EQ(changed, 0) << std::strerror(errno);
}

void SharedMemoryTransport::PollSockets() {
  sockets_due_ = false;
  int count = std::exchange(ready_count_, 0);
  if (count == 0) count = LookForEvents(0);
  while (count > 0) {
    for (int i = 0; i < count; ++i) Notice(ready_[i].data.ptr);
    count = count == std::ssize(ready_) ? LookForEvents(0) : 0;
  }
  if (accept_due_) AcceptAll();
  if (answers_due_) AnswerAll();
  for (size_t i = 0; opening_ > 0 && i < outgoing_.size(); ++i) {
    OutgoingLink& link = *outgoing_[i];
    if (!link.open && link.lost.ok() && !link.disconnected) Open(link);
  }
}

int SharedMemoryTransport::LookForEvents(int milliseconds) {
  return std::max(0, epoll_wait(events_.get(), ready_.data(), ready_.size(), milliseconds));
}

void SharedMemoryTransport::Notice(void* whose) {
  if (whose == nullptr) return;  // somebody else's
  if (whose == &listener_) {
    accept_due_ = true;
  } else if (Link* link = static_cast<Link*>(whose); link->outgoing) {
    ReadSocket(static_cast<OutgoingLink&>(*link));
  } else {
    ReadSocket(static_cast<IncomingLink&>(*link));
  }
}

void SharedMemoryTransport::AcceptAll() {
  accept_due_ = false;
  while (true) {
    absl::StatusOr<std::optional<ControlSocket>> accepted = listener_.Accept();
    if (absl::IsResourceExhausted(accepted.status())) {
      LOG_EVERY_N(WARNING, 1000) << "shared memory: " << accepted.status();
      accept_due_ = true;
      return;
    }
    if (absl::IsPermissionDenied(accepted.status())) {
      LOG(WARNING) << "shared memory: " << accepted.status();
      continue;
    }
    if (!accepted.ok() || !accepted->has_value()) return;
    incoming_.push_back(std::make_unique<IncomingLink>(**std::move(accepted)));
    Watch(*incoming_.back());
    ReadSocket(*incoming_.back());
  }
}

void SharedMemoryTransport::ReadSocket(OutgoingLink& link) {
  if (link.socket.has_value() && link.socket_full) WatchForRoom(link, false);
  while (link.socket.has_value()) {
    absl::StatusOr<std::optional<ControlSocket::Received>> heard = link.socket->Receive();
    if (!heard.ok()) {
      if (link.is_open()) TakeReturns(link);  // what came before the end
      return Lose(link, heard.status());
    }
    if (!heard->has_value()) return;
    const absl::Status believed = Hear(link, **std::move(heard));
    if (believed.ok()) continue;
    malformed_.fetch_add(1, std::memory_order_relaxed);
    return Lose(link, absl::UnavailableError(
                          absl::StrCat("the peer breaks the protocol: ", believed.message())));
  }
}

void SharedMemoryTransport::ReadSocket(IncomingLink& link) {
  while (link.socket.has_value() && !link.ended) {
    absl::StatusOr<std::optional<ControlSocket::Received>> heard = link.socket->Receive();
    if (absl::IsUnavailable(heard.status())) {
      link.ended = ended_ = true;
      return;
    }
    if (heard.ok() && !heard->has_value()) return;
    const absl::Status believed = heard.ok() ? Hear(link, **std::move(heard)) : heard.status();
    if (!believed.ok()) return Break(link, believed);
  }
}

absl::Status SharedMemoryTransport::Hear(OutgoingLink& link, ControlSocket::Received received) {
  if (received.packet.kind != Kind::kBell || link.bell.has_value()) {
    return absl::InvalidArgumentError("more than its bell");
  }
  ASSIGN_OR_RETURN(link.bell, Doorbell::Adopt(std::move(received.file)));
  return absl::OkStatus();
}

absl::Status SharedMemoryTransport::Hear(IncomingLink& link, ControlSocket::Received received) {
  const ControlPacket& packet = received.packet;
  if ((packet.kind == Kind::kHello) == link.greeted()) {
    return absl::InvalidArgumentError("a HELLO too many, or too late");
  }
  if (packet.kind == Kind::kHello) {
    ASSIGN_OR_RETURN(link.memory, SealedMemory::Map(received.file, message_ring::kBytes,
                                                    SealedMemory::Access::kReadWrite));
    link.ring = MessageRingReader(link.memory.memory());
    link.nonce = packet.nonce;
    Answer(link);
    return absl::OkStatus();
  }
  if (packet.kind == Kind::kBell) {
    if (link.bell.has_value()) return absl::InvalidArgumentError("a BELL too many");
    ASSIGN_OR_RETURN(link.bell, Doorbell::Adopt(std::move(received.file)));
    return absl::OkStatus();
  }
  if (packet.kind == Kind::kWithdraw) {
    if (link.slabs.erase(packet.slab) == 1) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("withdraws unknown slab ", packet.slab));
  }
  if (link.slabs.size() >= kSlabsPerLinkMax || packet.slab == 0 ||
      link.slabs.contains(packet.slab)) {
    return absl::InvalidArgumentError(absl::StrCat("slab ", packet.slab,
                                                   " is known, or 0, or one "
                                                   "of more than ",
                                                   kSlabsPerLinkMax));
  }
  ASSIGN_OR_RETURN(SealedMemory slab,
                   SealedMemory::Map(received.file, packet.bytes, SealedMemory::Access::kRead));
  link.slabs[packet.slab] = std::make_shared<SealedMemory>(std::move(slab));
  return absl::OkStatus();
}

// With our bell: whoever has it not could not wake us, so nothing is read from the link before. A
// sender that is gone wakes nobody, and what it left is read.
void SharedMemoryTransport::Answer(IncomingLink& link) {
  const absl::Status said = link.socket->Send({.kind = Kind::kBell}, bell_.fd());
  link.answered = !absl::IsResourceExhausted(said);
  answers_due_ |= !link.answered;
}

void SharedMemoryTransport::AnswerAll() {
  answers_due_ = false;
  for (auto& link : incoming_) {
    if (!link->greeted() || link->answered || !link->socket.has_value()) continue;
    Answer(*link);
  }
}

// ---- Progress.

int SharedMemoryTransport::Progress() {
  CHECK(receiver_ != nullptr) << "SetReceiver comes before Progress";
  StayAwake();
  if (sockets_due_ || ++progresses_ % kSocketsEvery == 0) PollSockets();
  int events = ReceiveAll();
  for (size_t i = 0; i < outgoing_.size(); ++i) {
    OutgoingLink& link = *outgoing_[i];
    if (!link.is_open()) continue;
    if (link.loans_out() > 0) events += TakeReturns(link);
    if (link.first != nullptr) Pump(link);
  }
  if (slabs_->TakeWithdrawn()) {
    for (OutgoingLink* link : outgoing_) {
      if (link->is_open()) Withdraw(*link);
    }
  }
  events += FinishSends();
  events += ReportLosses();
  WakeReaders();
  if (events == 0 || ++busy_turns_ >= kBusyTurnsMax) WakeWriters();
  if (reap_ || ended_) Reap();
  return events;
}

int SharedMemoryTransport::ReceiveAll() {
  int events = 0;
  for (size_t i = 0; i < incoming_.size(); ++i) {
    events += Receive(*incoming_[i], kMessagesPerTurn);
  }
  return events + DrainEnded();
}

int SharedMemoryTransport::DrainEnded() {
  int events = 0;
  for (size_t i = 0; ended_ && i < incoming_.size(); ++i) {
    if (!incoming_[i]->ended) continue;
    events += Receive(*incoming_[i], message_ring::kEntries);
    incoming_[i]->broken = true;  // all that was there is taken
  }
  return events;
}

int SharedMemoryTransport::FinishSends() {
  finishing_.swap(finished_);
  for (FinishedSend& send : finishing_) send.done(send.status);
  const int finished = static_cast<int>(finishing_.size());
  finishing_.clear();
  return finished;
}

int SharedMemoryTransport::ReportLosses() {
  int events = 0;
  while (!lost_.empty()) {
    events += DrainEnded();
    auto found = peers_.find(lost_.front());
    lost_.pop_front();
    if (found == peers_.end() || found->second->disconnected) continue;
    receiver_->PeerLost(found->second->id, found->second->lost);
    ++events;
  }
  return events;
}

// Frees the links that nothing needs any more: here, where nobody iterates over them.
void SharedMemoryTransport::Reap() {
  reap_ = false;
  std::erase_if(outgoing_, [this](OutgoingLink* link) {
    if (!link->disconnected || (link->is_open() && link->loans_out() > 0)) return false;
    Close(*link);
    peers_.erase(link->id);
    return true;
  });
  if (!std::exchange(ended_, false)) return;
  std::erase_if(incoming_, [this](const std::unique_ptr<IncomingLink>& link) {
    if (!link->ended) return false;
    if (!link->broken) {  // it ended after its turn
      ended_ = true;
      return false;
    }
    for (Loan& loan : loans_) {
      if (loan.link == link.get()) loan.link = nullptr;
    }
    std::erase(due_, link.get());
    Close(*link);
    return true;
  });
}

// ---- Sleeping.

bool SharedMemoryTransport::HasNews() const {
  if (!finished_.empty() || !lost_.empty() || ended_ || reap_) return true;
  for (const auto& link : incoming_) {
    if (link->is_open() && link->ring.HasMessage()) return true;
  }
  for (const OutgoingLink* link : outgoing_) {
    if (!link->is_open()) continue;
    if (link->loans_out() > 0 && link->ring.HasReturn()) return true;
    if (link->first != nullptr && CanAdvance(*link)) return true;
  }
  return false;
}

bool SharedMemoryTransport::PrepareToSleep() {
  WakePeers();
  if (ready_count_ > 0) return false;
  if (woken_.load(std::memory_order_relaxed) && woken_.exchange(false)) return false;
  asleep_ = true;
  for (auto& link : incoming_) {
    if (link->is_open()) link->ring.SetSleeps(true);
  }
  for (OutgoingLink* link : outgoing_) {
    const bool waits = link->first != nullptr || link->loans_out() > 0;
    if (link->is_open() && waits) link->ring.SetSleeps(true);
  }
  message_ring::Settle();
  if (HasNews()) StayAwake();
  return asleep_;
}

void SharedMemoryTransport::StayAwake() {
  if (!std::exchange(asleep_, false)) return;
  sockets_due_ = true;
  for (auto& link : incoming_) {
    if (link->is_open()) link->ring.SetSleeps(false);
  }
  for (OutgoingLink* link : outgoing_) {
    if (link->is_open()) link->ring.SetSleeps(false);
  }
}

absl::Duration SharedMemoryTransport::SleepMax() const {
  return opening_ > 0 || accept_due_ || answers_due_ ? kRetryTime : absl::InfiniteDuration();
}

void SharedMemoryTransport::Wait(absl::Duration timeout) {
  timeout = std::max(std::min(timeout, SleepMax()), absl::ZeroDuration());
  const auto news = [this] { return HasNews() || woken_.load(std::memory_order_relaxed); };
  WakePeers();
  if (budget_.PollUntil(news, absl::ToChronoNanoseconds(timeout))) {
    woken_.store(false);
    return;
  }
  if (!PrepareToSleep()) return;
  Sleep(timeout);
  woken_.store(false);  // it was this Wait() that ended
}

bool SharedMemoryTransport::Sleep(absl::Duration timeout) {
  CHECK(asleep_ && ready_count_ == 0) << "PrepareToSleep() comes before, Progress() after Sleep()";
  const bool forever = timeout == absl::InfiniteDuration();
  ready_count_ =
      LookForEvents(forever ? -1
                            : static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(
                                  std::min(timeout, kSleepMax), absl::Milliseconds(1)))));
  return ready_count_ > 0;
}

void SharedMemoryTransport::Wake() {
  if (!woken_.exchange(true)) bell_.Ring();  // else the last one is not used up
}

void SharedMemoryTransport::MarkDue(IncomingLink& link) {
  link.due_at = ++changes_;
  if (std::exchange(link.due, true)) return;
  due_.push_back(&link);
}

// Whether its writer has been woken, as the reader of another link, after all that was done here:
// it sees that then.
bool SharedMemoryTransport::WasWoken(const IncomingLink& link) const {
  return std::any_of(outgoing_.begin(), outgoing_.end(), [&link](const OutgoingLink* other) {
    return other->woken_at > link.due_at && other->address.nonce == link.nonce;
  });
}

void SharedMemoryTransport::WakePeers() {
  WakeReaders();
  WakeWriters();
}

// Those who fell asleep while something was published for them: one barrier for all.
void SharedMemoryTransport::WakeReaders() {
  if (published_.empty()) return;
  message_ring::Settle();
  for (OutgoingLink* link : published_) {
    link->due = false;
    if (link->is_open()) WakeReader(*link);
  }
  published_.clear();
}

// For what was returned and released. Late, as an answer that is still to come wakes as well.
void SharedMemoryTransport::WakeWriters() {
  busy_turns_ = 0;
  std::erase_if(due_, [this](IncomingLink* link) {
    link->due = link->is_open() && !WasWoken(*link);
    return !link->due;
  });
  if (due_.empty()) return;
  message_ring::Settle();
  for (IncomingLink* link : due_) {
    link->due = false;
    if (link->ring.TakeWriterSleeps()) link->bell->Ring();
  }
  due_.clear();
}

}  // namespace muster
