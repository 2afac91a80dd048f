#include "lib/transport/testing/inprocess_transport.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/transport/core/shared_slab.h"
#include "lib/transport/session/session.h"

namespace muster {
namespace {

constexpr absl::string_view kAddressPrefix = "inprocess:";
constexpr int64_t kNobody = -1;

// One side's end of a link.
struct LinkEnd {
  int64_t number = kNobody;     // of the other side's transport; kNobody: the link is lost
  PeerId peer = PeerId::kNone;  // this side's id at the other side
};

// A join, or a message in transit. `payload` is the sender's memory, or that of `kept` if the
// sender has its memory back.
struct Arrival {
  int64_t from;     // number of the sender's transport
  PeerId receiver;  // the receiver's id at the sender
  PeerId sender;    // the sender's id at the receiver
  std::optional<LinkIdentity> joined;
  std::array<std::byte, WireHeader::kBytes> header = {};
  absl::Span<const std::byte> payload;
  bool breaks = false;  // the payload is lost after it was placed
  std::vector<std::byte> kept;
  Transport::SendDone done;
};

// A payload lent to a receiver, with the object that keeps its memory alive.
struct Loan {
  int64_t from = kNobody;
  Transport::SendDone done;
  std::shared_ptr<SharedSlab> slab;
  std::vector<std::byte> kept;
};

struct FinishedSend {
  Transport::SendDone done;
  absl::Status status;
};

struct Loss {
  PeerId peer;
  absl::Status why;
};

}  // namespace

struct InProcessNetwork::Inbox {
  bool HasNews() const {
    return woken || !arrivals.empty() || !finished.empty() || !losses.empty();
  }

  void Finish(Transport::SendDone done, absl::Status status) {
    if (done) finished.push_back({std::move(done), std::move(status)});
  }

  // Removes the messages from `from` to the peer that it calls `receiver` (kNone: to all peers).
  std::vector<Arrival> Withdraw(int64_t from, PeerId receiver) {
    std::vector<Arrival> withdrawn;
    for (std::deque<Arrival>* queue : {&arrivals, &held}) {
      auto first = std::stable_partition(queue->begin(), queue->end(), [&](const Arrival& arrival) {
        return arrival.from != from || (receiver != PeerId::kNone && arrival.receiver != receiver);
      });
      std::move(first, queue->end(), std::back_inserter(withdrawn));
      queue->erase(first, queue->end());
    }
    return withdrawn;
  }

  std::deque<Arrival> arrivals;
  std::deque<Arrival> held;
  std::vector<FinishedSend> finished;
  std::deque<Loss> losses;
  bool woken = false;
  // The sender of the payload that is being copied without the lock. It waits for that before it
  // reuses the memory.
  int64_t copying_from = kNobody;
  int32_t peers_made = 0;
  absl::flat_hash_map<PeerId, LinkEnd> peers;
  SessionTable sessions;
};

// A transport of an InProcessNetwork. Its state is in its Inbox, guarded by the network's mutex.
class InProcessTransport : public Transport {
 public:
  InProcessTransport(InProcessNetwork* network, InProcessNetwork::Inbox* inbox, int64_t number)
      : network_(network), inbox_(inbox), number_(number) {}

  ~InProcessTransport() override {
    CHECK_EQ(loans_.size(), free_loans_.size()) << "a lease must end before its transport";
    absl::MutexLock lock(&network_->mu_);
    auto nobody_copies = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mu_) {
      for (const auto& [number, inbox] : network_->inboxes_) {
        if (inbox->copying_from == number_) return false;
      }
      return true;
    };
    network_->mu_.Await(absl::Condition(&nobody_copies));
    const absl::Status why = absl::UnavailableError(absl::StrCat(address(), " is gone"));
    for (std::deque<Arrival>* queue : {&inbox_->arrivals, &inbox_->held}) {
      for (Arrival& arrival : *queue) {
        network_->Find(arrival.from)->Finish(std::move(arrival.done), why);
      }
    }
    network_->inboxes_.erase(number_);
    for (auto& [number, other] : network_->inboxes_) {
      for (const Arrival& arrival : other->Withdraw(number_, PeerId::kNone)) {
        // The receiver never knew the peer.
        if (arrival.joined.has_value()) other->peers.erase(arrival.sender);
      }
      for (auto& [peer, end] : other->peers) {
        if (end.number != number_) continue;
        end.number = kNobody;
        other->losses.push_back({peer, why});
      }
    }
  }

  void SetReceiver(MessageReceiver* receiver) override { receiver_ = receiver; }

  std::string address() const override { return absl::StrCat(kAddressPrefix, number_); }

  std::string name() const override { return "inprocess"; }

  void OpenSession(uint64_t job, uint32_t generation, const SessionToken& token) override {
    absl::MutexLock lock(&network_->mu_);
    inbox_->sessions.Open(job, generation, token);
  }

  void CloseSession(uint64_t job, uint32_t generation) override {
    absl::MutexLock lock(&network_->mu_);
    inbox_->sessions.Close(job, generation);
  }

  absl::StatusOr<PeerId> Connect(absl::string_view address,
                                 const LinkCredentials& credentials) override {
    int64_t number = kNobody;
    absl::string_view digits = address;
    if (!absl::ConsumePrefix(&digits, kAddressPrefix) || !absl::SimpleAtoi(digits, &number) ||
        number < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("these ", address.size(), " bytes are no in-process address"));
    }
    absl::MutexLock lock(&network_->mu_);
    const PeerId peer{inbox_->peers_made++};
    inbox_->peers[peer] = {};
    InProcessNetwork::Inbox* other = network_->Find(number);
    if (other == nullptr) {
      inbox_->losses.push_back(
          {peer, absl::UnavailableError(absl::StrCat(address, " is not there"))});
      return peer;
    }
    const LinkIdentity& self = credentials.self;
    const SessionToken* token = other->sessions.Find(self.job, self.generation);
    if (token == nullptr || !(*token == credentials.token)) {
      inbox_->losses.push_back({peer, NotLetIn(address)});
      return peer;
    }
    const PeerId back{other->peers_made++};
    inbox_->peers[peer] = {.number = number, .peer = back};
    other->peers[back] = {.number = number_, .peer = peer};
    other->arrivals.push_back({.from = number_, .receiver = peer, .sender = back, .joined = self});
    return peer;
  }

  void Disconnect(PeerId peer) override {
    absl::MutexLock lock(&network_->mu_);
    const LinkEnd end = EndOf(peer);
    auto not_copied = [this, &end]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mu_) {
      InProcessNetwork::Inbox* other = network_->Find(end.number);
      return other == nullptr || other == inbox_ || other->copying_from != number_;
    };
    network_->mu_.Await(absl::Condition(&not_copied));
    if (InProcessNetwork::Inbox* other = network_->Find(end.number)) {
      for (Arrival& arrival : other->Withdraw(number_, peer)) {
        // The receiver never knew the peer.
        if (arrival.joined.has_value()) other->peers.erase(end.peer);
        inbox_->Finish(std::move(arrival.done), absl::CancelledError("disconnected"));
      }
      const absl::Status why = absl::UnavailableError(absl::StrCat(address(), " has disconnected"));
      for (Arrival& arrival : inbox_->Withdraw(end.number, end.peer)) {
        other->Finish(std::move(arrival.done), why);
      }
      if (auto found = other->peers.find(end.peer); found != other->peers.end()) {
        found->second.number = kNobody;
        other->losses.push_back({end.peer, why});
      }
    }
    std::erase_if(inbox_->losses, [peer](const Loss& loss) { return loss.peer == peer; });
    inbox_->peers.erase(peer);
  }

  void Send(PeerId peer, const WireHeader& header, absl::Span<const std::byte> payload,
            SendDone done) override {
    CHECK_EQ(header.length, payload.size());
    absl::MutexLock lock(&network_->mu_);
    const LinkEnd end = EndOf(peer);
    InProcessNetwork::Inbox* receiver = network_->Find(end.number);
    if (receiver == nullptr) {
      inbox_->Finish(std::move(done), absl::UnavailableError("the peer is gone"));
      return;
    }
    using Fate = InProcessNetwork::Fate;
    const Fate fate = network_->fault_ ? network_->fault_(header) : Fate::kDeliver;
    Arrival arrival{
        .from = number_, .receiver = peer, .sender = end.peer, .header = EncodeHeader(header)};
    if (fate == Fate::kDeliver || fate == Fate::kBreak) {
      arrival.payload = payload;
      arrival.breaks = fate == Fate::kBreak;
      arrival.done = std::move(done);
      receiver->arrivals.push_back(std::move(arrival));
      return;
    }
    std::deque<Arrival>& queue = fate == Fate::kHold ? receiver->held : receiver->arrivals;
    for (int copies = fate == Fate::kDrop        ? 0
                      : fate == Fate::kDuplicate ? 2
                                                 : 1;
         copies > 0; --copies) {
      Arrival& copy = queue.emplace_back(Arrival{.from = arrival.from,
                                                 .receiver = arrival.receiver,
                                                 .sender = arrival.sender,
                                                 .header = arrival.header});
      copy.kept.assign(payload.begin(), payload.end());
      copy.payload = copy.kept;
    }
    inbox_->Finish(std::move(done), absl::OkStatus());
  }

  absl::StatusOr<std::unique_ptr<MemoryRegistration>> RegisterMemory(
      absl::Span<std::byte>) override {
    return std::make_unique<MemoryRegistration>();
  }

  int Progress() override {
    CHECK(receiver_ != nullptr) << "SetReceiver() must be called before Progress()";
    std::vector<FinishedSend> finished;
    std::optional<Arrival> arrival;
    {
      absl::MutexLock lock(&network_->mu_);
      finished.swap(inbox_->finished);
      if (!inbox_->arrivals.empty()) {
        arrival = std::move(inbox_->arrivals.front());
        inbox_->arrivals.pop_front();
        // The payload is copied without the lock. The sender's Disconnect() and its destructor wait
        // for that.
        inbox_->copying_from = arrival->from;
      }
    }
    int events = static_cast<int>(finished.size());
    if (arrival.has_value()) {
      Deliver(*arrival);
      ++events;
    }
    for (FinishedSend& send : finished) send.done(send.status);
    // The losses are reported one by one, because a callback may disconnect another peer, which
    // must then not be reported.
    while (std::optional<Loss> loss = TakeLoss()) {
      receiver_->PeerLost(loss->peer, loss->why);
      ++events;
    }
    return events;
  }

  void Wait(absl::Duration timeout) override {
    absl::MutexLock lock(&network_->mu_);
    auto news = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mu_) { return inbox_->HasNews(); };
    AwaitFor(&network_->mu_, absl::Condition(&news), timeout);
    inbox_->woken = false;
  }

  void Wake() override {
    absl::MutexLock lock(&network_->mu_);
    inbox_->woken = true;
  }

 private:
  static absl::Status NotLetIn(absl::string_view address) {
    return absl::PermissionDeniedError(
        absl::StrCat(address, ": not let in: no such session is open there, or its token differs"));
  }

  LinkEnd EndOf(PeerId peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mu_) {
    auto found = inbox_->peers.find(peer);
    CHECK(found != inbox_->peers.end()) << "no peer " << static_cast<int>(peer);
    return found->second;
  }

  void Deliver(Arrival& arrival) {
    if (arrival.joined.has_value()) {
      LetGo(arrival.from, nullptr);
      return receiver_->PeerJoined(arrival.sender, *arrival.joined);
    }
    absl::StatusOr<WireHeader> header = DecodeHeader(arrival.header);
    CHECK(header.ok()) << header.status();
    PayloadPlace place;
    if (!arrival.payload.empty()) place = receiver_->PlacePayload(arrival.sender, *header);
    network_->placed_past_caches_ += place.past_caches;
    if (arrival.breaks && !arrival.payload.empty()) {
      LetGo(arrival.from, std::move(arrival.done));
      if (!place.memory.empty()) receiver_->PayloadLost(arrival.sender, *header);
      return;
    }
    if (place.in_place && !place.memory.empty() && DeliverInPlace(*header, arrival)) return;
    if (!place.memory.empty()) {
      CHECK_EQ(place.memory.size(), arrival.payload.size());
      std::memcpy(place.memory.data(), arrival.payload.data(), arrival.payload.size());
    }
    LetGo(arrival.from, std::move(arrival.done));
    if (place.memory.size() == arrival.payload.size()) {
      receiver_->Received(arrival.sender, *header, place.memory, {});
    }
  }

  // Returns false if the payload's memory cannot outlive its sender.
  bool DeliverInPlace(const WireHeader& header, Arrival& arrival) {
    std::shared_ptr<SharedSlab> slab = SharedSlab::Find(arrival.payload);
    if (slab == nullptr && arrival.kept.empty()) return false;
    if (free_loans_.empty()) {
      free_loans_.push_back(loans_.size());
      loans_.emplace_back();
    }
    const size_t loan = free_loans_.back();
    free_loans_.pop_back();
    loans_[loan] = {arrival.from, std::move(arrival.done), std::move(slab),
                    std::move(arrival.kept)};
    LetGo(arrival.from, nullptr);
    receiver_->Received(arrival.sender, header, arrival.payload, PayloadLease(this, loan));
    return true;
  }

  void Return(uint64_t loan) override {
    Loan returned = std::exchange(loans_[loan], {});
    free_loans_.push_back(loan);
    absl::MutexLock lock(&network_->mu_);
    Complete(returned.from, std::move(returned.done));
  }

  // Reports that no memory of the sender is being copied any more, and completes its send if `done`
  // is set.
  void LetGo(int64_t sender, SendDone done) {
    absl::MutexLock lock(&network_->mu_);
    inbox_->copying_from = kNobody;
    Complete(sender, std::move(done));
  }

  void Complete(int64_t sender, SendDone done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mu_) {
    InProcessNetwork::Inbox* inbox = network_->Find(sender);
    if (inbox != nullptr) inbox->Finish(std::move(done), absl::OkStatus());
  }

  std::optional<Loss> TakeLoss() {
    absl::MutexLock lock(&network_->mu_);
    if (inbox_->losses.empty()) return std::nullopt;
    Loss loss = std::move(inbox_->losses.front());
    inbox_->losses.pop_front();
    return loss;
  }

  InProcessNetwork* const network_;
  InProcessNetwork::Inbox* const inbox_;
  const int64_t number_;
  MessageReceiver* receiver_ = nullptr;
  std::vector<Loan> loans_;
  std::vector<size_t> free_loans_;
};

InProcessNetwork::InProcessNetwork() = default;

InProcessNetwork::~InProcessNetwork() {
  absl::MutexLock lock(&mu_);
  CHECK(inboxes_.empty()) << "a network must outlive its transports";
}

InProcessNetwork::Inbox* InProcessNetwork::Find(int64_t number) {
  auto found = inboxes_.find(number);
  return found == inboxes_.end() ? nullptr : found->second.get();
}

std::unique_ptr<Transport> InProcessNetwork::MakeTransport() {
  absl::MutexLock lock(&mu_);
  const int64_t number = transports_made_++;
  auto inbox = std::make_unique<Inbox>();
  auto transport = std::make_unique<InProcessTransport>(this, inbox.get(), number);
  inboxes_[number] = std::move(inbox);
  return transport;
}

void InProcessNetwork::SetFault(Fault fault) {
  absl::MutexLock lock(&mu_);
  fault_ = std::move(fault);
}

void InProcessNetwork::ReleaseHeld() {
  absl::MutexLock lock(&mu_);
  for (auto& [number, inbox] : inboxes_) {
    std::move(inbox->held.begin(), inbox->held.end(), std::back_inserter(inbox->arrivals));
    inbox->held.clear();
  }
}

}  // namespace muster
