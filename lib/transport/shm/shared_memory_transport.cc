#include "lib/transport/shm/shared_memory_transport.h"

#include <glog/logging.h>
#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/memory/memory.h"
#include "lib/status/status.h"
#include "lib/transport/core/registered_slabs.h"
#include "lib/transport/core/shared_slab.h"
#include "lib/transport/shm/message_ring.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kGoodbyeTime = std::chrono::milliseconds(200);
constexpr int kMessagesPerTurn = 16;  // of one link, before the next link has its turn
// The number of turns during which a writer that waits for room may be left asleep.
constexpr int kBusyTurnsMax = 8;

}  // namespace

// The handle of a registration. It keeps the slab table alive if it outlives the transport.
class SharedMemoryTransport::SlabRegistration : public MemoryRegistration {
 public:
  SlabRegistration(std::shared_ptr<RegisteredSlabs> slabs, uint32_t number)
      : slabs_(std::move(slabs)), number_(number) {}
  ~SlabRegistration() override { slabs_->Unregister(number_); }

 private:
  const std::shared_ptr<RegisteredSlabs> slabs_;
  const uint32_t number_;
};

absl::StatusOr<std::unique_ptr<SharedMemoryTransport>> SharedMemoryTransport::Create(
    EventLoop* loop, SharedMemoryTransportOptions options) {
  ASSIGN_OR_RETURN(LocalAddress address, LocalAddress::Make());
  ASSIGN_OR_RETURN(ControlSocket listener, ControlSocket::Listen(address.SocketName()));
  auto made = absl::WrapUnique(
      new SharedMemoryTransport(loop, std::move(address), std::move(listener), options));
  RETURN_IF_ERROR(loop->Watch(made->listener_.fd(), EPOLLIN | EPOLLET, made.get()));
  return made;
}

SharedMemoryTransport::SharedMemoryTransport(EventLoop* loop, LocalAddress address,
                                             ControlSocket listener,
                                             SharedMemoryTransportOptions options)
    : TransportBackend(loop),
      local_(std::move(address)),
      address_(local_.Encode()),
      options_(options),
      listener_(std::move(listener)),
      commons_{.transport = this, .loop = loop, .greeting_time = options.greeting_time} {}

// The destructor waits for up to kGoodbyeTime until lent payloads are returned, because their owner
// will reuse the memory after it.
SharedMemoryTransport::~SharedMemoryTransport() {
  CHECK(commons_.leases.empty()) << "a lease outlives its transport";
  commons_.sends.Forget();
  loop().Unwatch(listener_.fd(), this);
  const auto lends = [this] {
    return std::any_of(links_.begin(), links_.end(),
                       [](const auto& link) { return link->loans_out() > 0; });
  };
  StayAwake();
  for (auto& link : links_) link->Disconnect();
  Settle();
  const auto deadline = Clock::now() + kGoodbyeTime;
  while (lends() && Clock::now() < deadline) {
    loop().Look();
    for (auto& link : links_) {
      if (link->noted()) link->ReadSocket();
      link->Receive(message_ring::kEntries);
      link->Pump();
    }
    Settle();
    WakePeers();
    sched_yield();
  }
}

bool SharedMemoryTransport::IsLocal(absl::string_view address) {
  const absl::StatusOr<LocalAddress> other = LocalAddress::Decode(address);
  if (!other.ok()) return false;
  const absl::StatusOr<LocalAddress> here = LocalAddress::Make();
  return here.ok() && here->Reaches(*other);
}

std::string SharedMemoryTransport::ObstacleTo(absl::string_view address) {
  const absl::StatusOr<LocalAddress> other = LocalAddress::Decode(address);
  const absl::StatusOr<LocalAddress> here = LocalAddress::Make();
  return other.ok() && here.ok() ? std::string(here->ObstacleTo(*other)) : "";
}

// ---- Calls of the owner.

void SharedMemoryTransport::OpenSession(uint64_t job, uint32_t generation,
                                        const SessionToken& token) {
  commons_.sessions.Open(job, generation, token);
}

void SharedMemoryTransport::CloseSession(uint64_t job, uint32_t generation) {
  commons_.sessions.Close(job, generation);
}

absl::StatusOr<PeerId> SharedMemoryTransport::Connect(absl::string_view address,
                                                      const LinkCredentials& credentials) {
  ASSIGN_OR_RETURN(LocalAddress decoded, LocalAddress::Decode(address));
  const bool reached = local_.Reaches(decoded);
  const Time now = Clock::now();
  links_.push_back(
      std::make_unique<SharedMemoryLink>(&commons_, std::move(decoded), credentials, now));
  SharedMemoryLink& link = *links_.back();
  if (!reached) {
    link.GiveUp(
        absl::UnavailableError("the address belongs to another host, network namespace or user"));
  } else {
    link.GoOn(now);
  }
  return link.id();
}

SharedMemoryLink* SharedMemoryTransport::FindLeaving(PeerId peer) {
  if (lost_.erase(peer) == 1) return nullptr;
  const auto found = commons_.peers.find(peer);
  CHECK(found != commons_.peers.end() && !found->second->left())
      << "no peer " << static_cast<int>(peer);
  return found->second;
}

void SharedMemoryTransport::Disconnect(PeerId peer) {
  if (SharedMemoryLink* const link = FindLeaving(peer)) link->Disconnect();
}

void SharedMemoryTransport::CutOff(PeerId peer) {
  if (SharedMemoryLink* const link = FindLeaving(peer)) link->CutOff();
}

LinkDescription SharedMemoryTransport::Describe(PeerId /*peer*/) const {
  return {.transport = name(), .security = "host"};
}

void SharedMemoryTransport::Send(PeerId peer, const WireHeader& header,
                                 absl::Span<const std::byte> payload, SendDone done) {
  CHECK_EQ(header.length, payload.size());
  const auto found = commons_.peers.find(peer);
  if (found == commons_.peers.end()) {
    const auto lost = lost_.find(peer);
    CHECK(lost != lost_.end()) << "no peer " << static_cast<int>(peer);
    if (done) done(absl::Status(lost->second));
    return;
  }
  CHECK(!found->second->left()) << "no peer " << static_cast<int>(peer);
  found->second->Send(commons_.sends.Begin(header, payload, std::move(done)));
}

absl::StatusOr<std::unique_ptr<Transport::MemoryRegistration>>
SharedMemoryTransport::RegisterMemory(absl::Span<std::byte> memory) {
  const std::shared_ptr<SharedSlab> slab = SharedSlab::Find(memory);
  if (slab == nullptr || commons_.slabs->size() >= LinkReader::kSlabsMax) {
    return std::make_unique<MemoryRegistration>();
  }
  return std::make_unique<SlabRegistration>(commons_.slabs, commons_.slabs->Register(slab));
}

void SharedMemoryTransport::Return(uint64_t loan) {
  const LeaseTable::Lease lease = commons_.leases.Take(loan);
  if (lease.link != nullptr) lease.link->Return(lease.loan);
}

// ---- Progress.

// Receives and sends on all links, reports their ends and wakes their peers. Callbacks may add
// links during these loops, but none is removed: so the loops use indices.
int SharedMemoryTransport::Advance() {
  CHECK(commons_.receiver != nullptr) << "SetReceiver() must be called before Progress()";
  StayAwake();
  if (commons_.sockets_due || accept_due_ || next_deadline_ != Time::max() ||
      commons_.retry_at != Time::max()) {
    LookAtSockets();
  }
  int events = 0;
  for (size_t i = 0; i < links_.size(); ++i) events += links_[i]->Receive(kMessagesPerTurn);
  for (size_t i = 0; i < links_.size(); ++i) events += links_[i]->Pump();
  if (commons_.slabs->TakeWithdrawn()) {
    for (auto& link : links_) link->Withdraw();
  }
  events += commons_.sends.CallFinished();
  if (commons_.ends_due || leaving_) events += TellEnds();
  WakeReaders();
  // A busy thread wakes writers only now and then, because each wake costs a fence and perhaps a
  // system call.
  if (events == 0 || ++busy_turns_ >= kBusyTurnsMax) WakeWriters();
  return events;
}

int SharedMemoryTransport::TellEnds() {
  commons_.ends_due = false;
  int events = 0;
  for (size_t i = 0; i < links_.size(); ++i) events += links_[i]->TellEnd();
  Settle();
  return events;
}

// Destroys links that are no longer needed. Call it only while nothing iterates over the links.
void SharedMemoryTransport::Settle() {
  leaving_ = false;
  std::erase_if(links_, [this](const std::unique_ptr<SharedMemoryLink>& link) {
    if (!link->Settle()) {
      leaving_ |= link->left() || !link->why_ended().ok();
      return false;
    }
    // The receiver has not disconnected this peer yet, so later sends to it must fail with its
    // error.
    if (link->known() && !link->left()) lost_[link->id()] = link->why_ended();
    return true;
  });
}

// ---- Sockets.

void SharedMemoryTransport::Ready(uint32_t) { accept_due_ = commons_.sockets_due = true; }

void SharedMemoryTransport::LookAtSockets() {
  commons_.sockets_due = false;
  commons_.retry_at = Time::max();
  const Time now = Clock::now();
  next_deadline_ = Time::max();
  for (auto& link : links_) {
    if (link->noted()) link->ReadSocket();
    link->GoOn(now);
  }
  if (accept_due_ && now >= accept_at_) AcceptSome(now);
  for (auto& link : links_) {
    if (!link->ungreeted() && !link->unanswered()) continue;
    if (now >= link->deadline()) {
      // The packet may have arrived while this thread was held up. Read it before blaming the peer.
      link->ReadSocket();
      link->GoOn(now);
      if (!link->ungreeted() && !link->unanswered()) continue;
    }
    if (now < link->deadline()) {
      next_deadline_ = std::min(next_deadline_, link->deadline());
    } else if (link->unanswered()) {
      link->GiveUpOpening();
    } else {
      LOG_EVERY_T(WARNING, 1)
          << "shared memory: refused a connection that did not introduce itself in time";
      link->TurnAway(ControlPacket::Refusal::kNone);
    }
  }
}

int SharedMemoryTransport::CountUngreeted() const {
  return static_cast<int>(std::count_if(links_.begin(), links_.end(),
                                        [](const auto& link) { return link->ungreeted(); }));
}

// Accepts waiting connections. The listener reports only new ones (EPOLLET), so accept_due_ stays
// set until Accept() finds none.
void SharedMemoryTransport::AcceptSome(Time now) {
  for (int accepts = 0; CountUngreeted() < kUngreetedMax; ++accepts) {
    if (accepts == kAcceptsMax) {
      commons_.sockets_due = true;  // accept the others in the next turn, which comes at once
      return;
    }
    absl::StatusOr<std::optional<ControlSocket>> accepted = listener_.Accept();
    if (absl::IsPermissionDenied(accepted.status())) {
      commons_.turned_away.fetch_add(1, std::memory_order_relaxed);
      LOG_EVERY_T(WARNING, 1) << "shared memory: refused a connection: " << accepted.status();
      continue;
    }
    if (!accepted.ok()) {
      LOG_EVERY_T(WARNING, 1) << "shared memory: cannot accept connections, trying again: "
                              << accepted.status();
      accept_at_ = now + LinkCommons::kRetryTime;
      return;
    }
    if (!accepted->has_value()) {
      accept_due_ = false;
      return;
    }
    const auto kept = std::count_if(links_.begin(), links_.end(),
                                    [](const auto& link) { return !link->dialled(); });
    auto link = std::make_unique<SharedMemoryLink>(&commons_, **std::move(accepted), now);
    absl::Status taken = link->Watch();
    if (kept >= options_.accepted_max)
      taken = absl::ResourceExhaustedError("there are too many links");
    if (!taken.ok()) {
      LOG_EVERY_T(WARNING, 1) << "shared memory: refused a connection: " << taken;
      link->TurnAway(ControlPacket::Refusal::kFull);
      continue;
    }
    link->ReadSocket();
    link->GoOn(now);
    links_.push_back(std::move(link));
  }
}

// ---- Sleeping.

bool SharedMemoryTransport::HasNews() const {
  if (commons_.sockets_due || commons_.ends_due || commons_.sends.has_finished()) return true;
  return std::any_of(links_.begin(), links_.end(),
                     [](const auto& link) { return link->HasNews(); });
}

bool SharedMemoryTransport::PrepareToSleep() {
  asleep_ = true;
  // The order is: flags, fence, one more look for news. message_ring.h has the reason.
  for (auto& link : links_) link->SetSleeps();
  message_ring::Settle();
  if (HasNews()) StayAwake();
  return asleep_;
}

void SharedMemoryTransport::StayAwake() {
  if (!std::exchange(asleep_, false)) return;
  for (auto& link : links_) link->StayAwake();
}

absl::Duration SharedMemoryTransport::SleepMax() const {
  absl::Duration max = absl::InfiniteDuration();
  if (accept_due_) max = absl::FromChrono(LinkCommons::kRetryTime);
  const Time next = std::min(next_deadline_, commons_.retry_at);
  if (next != Time::max()) max = std::min(max, absl::FromChrono(next - Clock::now()));
  return std::max(max, absl::ZeroDuration());
}

void SharedMemoryTransport::WakePeers() {
  WakeReaders();
  WakeWriters();
}

// Wakes readers that fell asleep while messages were published for them. One fence serves all
// links.
void SharedMemoryTransport::WakeReaders() {
  if (commons_.published.empty()) return;
  message_ring::Settle();
  for (SharedMemoryLink* link : commons_.published) link->WakeReader();
  commons_.published.clear();
}

// Wakes writers that wait for returned payloads and released bytes. This may be late, because an
// answer that follows also wakes them.
void SharedMemoryTransport::WakeWriters() {
  busy_turns_ = 0;
  if (commons_.returned.empty()) return;
  message_ring::Settle();
  for (SharedMemoryLink* link : commons_.returned) link->WakeWriter();
  commons_.returned.clear();
}

}  // namespace muster
