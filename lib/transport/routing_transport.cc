#include "lib/transport/routing_transport.h"

#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "lib/status/status.h"
#include "lib/transport/address_envelope.h"

namespace muster {
namespace {

constexpr absl::string_view kAddressMark = "MUR1";

// A look at an idle network is a system call, one at shared memory a few loads.
constexpr int kTurnsPerNetworkLook = 16;

// A closed or a new socket of shared memory shows only in PrepareToSleep().
constexpr std::chrono::nanoseconds kPollWithoutSockets = std::chrono::milliseconds(1);

// The parts of an address; either may be empty.
struct Addresses {
  absl::string_view shared;
  absl::string_view ucx;
};

// Sealed: the shared-memory address's length (2 bytes, little-endian), that address, UCX's.
std::string Join(const Addresses& addresses) {
  CHECK_LT(addresses.shared.size(), 1u << 16);
  const char length[] = {static_cast<char>(addresses.shared.size()),
                         static_cast<char>(addresses.shared.size() >> 8)};
  return SealAddress(kAddressMark, absl::StrCat(absl::string_view(length, sizeof(length)),
                                                addresses.shared, addresses.ucx));
}

absl::StatusOr<Addresses> Split(absl::string_view address) {
  ASSIGN_OR_RETURN(const absl::string_view body,
                   OpenAddress(kAddressMark, address, "address of a Muster transport"));
  const auto byte = [body](size_t i) { return static_cast<uint8_t>(body[i]); };
  const size_t length = body.size() < 2 ? body.size() : byte(0) | byte(1) << 8;
  if (body.size() < 2 + length) {
    return absl::InvalidArgumentError(
        absl::StrCat("these ", address.size(), " bytes are a truncated address"));
  }
  return Addresses{.shared = body.substr(2, length), .ucx = body.substr(2 + length)};
}

class BothRegistrations : public Transport::MemoryRegistration {
 public:
  std::unique_ptr<MemoryRegistration> shared, ucx;
};

absl::string_view NameOf(LinkKind links) {
  switch (links) {
    case LinkKind::kAuto:
      return "auto";
    case LinkKind::kSharedMemory:
      return "shm";
    case LinkKind::kUcx:
      return "ucx";
    case LinkKind::kRdma:
      return "rdma";
  }
  return "";
}

}  // namespace

absl::StatusOr<LinkKind> ParseLinkKind(absl::string_view word) {
  for (LinkKind links :
       {LinkKind::kAuto, LinkKind::kSharedMemory, LinkKind::kUcx, LinkKind::kRdma}) {
    if (word == NameOf(links)) return links;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("must be auto, shm, ucx or rdma (is '", word, "')"));
}

class RoutingTransport::CarrierReceiver : public MessageReceiver {
 public:
  explicit CarrierReceiver(bool shared) : shared_(shared) {}

  PayloadPlace PlacePayload(const WireHeader& header) override {
    return receiver->PlacePayload(header);
  }
  void Received(const WireHeader& header, absl::Span<const std::byte> payload,
                PayloadLease lease) override {
    receiver->Received(header, payload, std::move(lease));
  }
  void PeerLost(PeerId peer, const absl::Status& why) override {
    receiver->PeerLost(Outer(peer, shared_), why);
  }

  MessageReceiver* receiver = nullptr;

 private:
  const bool shared_;
};

absl::StatusOr<std::unique_ptr<RoutingTransport>> RoutingTransport::Create(
    RoutingTransportOptions options) {
  std::unique_ptr<SharedMemoryTransport> shared;
  if (options.links == LinkKind::kAuto || options.links == LinkKind::kSharedMemory) {
    auto made = SharedMemoryTransport::Create();
    if (made.ok()) {
      shared = *std::move(made);
    } else if (options.links == LinkKind::kSharedMemory) {
      return Annotate(made.status(), "--transport=shm");
    } else {
      LOG(WARNING) << "peers on this host are reached like others: " << made.status();
    }
  }
  std::unique_ptr<UcxTransport> ucx;
  if (options.links != LinkKind::kSharedMemory) {
    ASSIGN_OR_RETURN(ucx, UcxTransport::Create({.connections = options.connections,
                                                .require_rdma = options.links == LinkKind::kRdma,
                                                .allow_tcp_fallback = options.allow_tcp_fallback}));
  }
  return absl::WrapUnique(
      new RoutingTransport(std::move(options), std::move(shared), std::move(ucx)));
}

RoutingTransport::RoutingTransport(RoutingTransportOptions options,
                                   std::unique_ptr<SharedMemoryTransport> shared,
                                   std::unique_ptr<UcxTransport> ucx)
    : options_(std::move(options)),
      shared_receiver_(std::make_unique<CarrierReceiver>(true)),
      ucx_receiver_(std::make_unique<CarrierReceiver>(false)),
      shared_(std::move(shared)),
      ucx_(std::move(ucx)),
      address_(
          Join({.shared = shared_ ? shared_->address() : "", .ucx = ucx_ ? ucx_->address() : ""})),
      budget_(options_.polling) {
  if (shared_ && ucx_) shared_->AlsoWatch(ucx_->event_fd());
}

RoutingTransport::~RoutingTransport() = default;

void RoutingTransport::SetReceiver(MessageReceiver* receiver) {
  shared_receiver_->receiver = ucx_receiver_->receiver = receiver;
  if (shared_) shared_->SetReceiver(shared_receiver_.get());
  if (ucx_) ucx_->SetReceiver(ucx_receiver_.get());
}

std::string RoutingTransport::name() const {
  if (!ucx_) return shared_->name();
  return shared_ ? absl::StrCat(shared_->name(), "+", ucx_->name()) : ucx_->name();
}

absl::StatusOr<PeerId> RoutingTransport::Connect(absl::string_view address) {
  ASSIGN_OR_RETURN(const Addresses peer, Split(address));
  absl::Status unshared;
  if (shared_ && SharedMemoryTransport::IsLocal(peer.shared)) {
    absl::StatusOr<PeerId> connected = shared_->Connect(peer.shared);
    if (connected.ok()) return Outer(*connected, true);
    unshared = connected.status();
  }
  if (ucx_ && !peer.ucx.empty()) {
    LOG_IF(WARNING, !unshared.ok()) << "no shared memory with a peer on this host: " << unshared;
    ASSIGN_OR_RETURN(const PeerId connected, ucx_->Connect(peer.ucx));
    return Outer(connected, false);
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "no way to this peer: this side has --transport=", NameOf(options_.links), ", the peer ",
      peer.shared.empty() ? "only UCX"
      : peer.ucx.empty()  ? "only shared memory"
                          : "both",
      unshared.ok() ? ", and shared memory needs the same host, user and network namespace"
                    : absl::StrCat(", and shared memory failed: ", unshared.message()),
      "; --transport=auto on both sides reaches every peer"));
}

PeerId RoutingTransport::Outer(PeerId inner, bool shared) {
  return PeerId{static_cast<int32_t>(inner) * 2 + (shared ? 1 : 0)};
}
PeerId RoutingTransport::Inner(PeerId peer) { return PeerId{static_cast<int32_t>(peer) / 2}; }

Transport& RoutingTransport::Carrier(PeerId peer) const {
  const bool shared = (static_cast<int32_t>(peer) & 1) != 0;
  Transport* carrier = shared ? static_cast<Transport*>(shared_.get()) : ucx_.get();
  CHECK(carrier != nullptr && peer != PeerId::kNone) << "no peer " << static_cast<int>(peer);
  return *carrier;
}

void RoutingTransport::Disconnect(PeerId peer) { Carrier(peer).Disconnect(Inner(peer)); }

LinkDescription RoutingTransport::Describe(PeerId peer) const {
  return Carrier(peer).Describe(Inner(peer));
}

void RoutingTransport::Send(PeerId peer, const WireHeader& header,
                            absl::Span<const std::byte> payload, SendDone done) {
  Carrier(peer).Send(Inner(peer), header, payload, std::move(done));
}

absl::StatusOr<std::unique_ptr<Transport::MemoryRegistration>> RoutingTransport::RegisterMemory(
    absl::Span<std::byte> memory) {
  auto both = std::make_unique<BothRegistrations>();
  if (shared_) {
    ASSIGN_OR_RETURN(both->shared, shared_->RegisterMemory(memory));
  }
  if (ucx_) {
    ASSIGN_OR_RETURN(both->ucx, ucx_->RegisterMemory(memory));
  }
  return both;
}

int RoutingTransport::Progress() {
  int events = shared_ ? shared_->Progress() : 0;
  if (!NetworkIsDue(events)) return events;
  const int network_events = ucx_->Progress();
  turns_without_network_ = 0;
  if (network_events > 0) {
    network_active_ = true;
  } else if (events > 0) {
    network_active_ = false;
  }
  return events + network_events;
}

bool RoutingTransport::NetworkIsDue(int shared_events) {
  if (!ucx_) return false;
  return shared_events == 0 || network_active_ || ucx_->HasNews() ||
         ++turns_without_network_ >= kTurnsPerNetworkLook;
}

bool RoutingTransport::News() {
  if (shared_ && shared_->HasNews()) return true;
  if (!ucx_) return false;
  if (ucx_->HasNews()) return true;
  if (shared_ && !network_active_ && ++turns_without_network_ < kTurnsPerNetworkLook) return false;
  turns_without_network_ = 0;
  return ucx_->TakeIn();
}

bool RoutingTransport::TakeWake() {
  return woken_.load(std::memory_order_relaxed) && woken_.exchange(false);
}

// A Wake() either finds sleeping_ and passes it on, or is found by TakeWake().
bool RoutingTransport::PrepareToSleep() {
  sleeping_ = true;
  if (!TakeWake() && (!ucx_ || ucx_->PrepareToSleep()) && (!shared_ || shared_->PrepareToSleep())) {
    return true;
  }
  sleeping_ = false;
  return false;
}

void RoutingTransport::Wait(absl::Duration timeout) {
  if (shared_) timeout = std::min(timeout, shared_->SleepMax());
  if (ucx_) timeout = std::min(timeout, ucx_->SleepMax());
  timeout = std::max(timeout, absl::ZeroDuration());
  if (shared_) shared_->WakePeers();
  const auto news = [this] { return News() || TakeWake(); };
  const auto limit = std::min<std::chrono::nanoseconds>(absl::ToChronoNanoseconds(timeout),
                                                        std::chrono::hours(24));
  const bool regardless = options_.polling.regardless;
  const PollBudget::Time end = regardless ? PollBudget::Clock::now() + limit : PollBudget::Time();
  do {
    if (budget_.PollUntil(news, std::min(limit, kPollWithoutSockets))) return;
    if (!PrepareToSleep()) return;
    if (Sleep(regardless ? absl::ZeroDuration() : timeout)) break;
  } while (regardless && PollBudget::Clock::now() < end);
  sleeping_ = false;
  TakeWake();
}

// Whether one of the carriers has something.
bool RoutingTransport::Sleep(absl::Duration timeout) {
  return shared_ ? shared_->Sleep(timeout) : ucx_->Sleep(timeout);
}

void RoutingTransport::Wake() {
  woken_ = true;
  if (!sleeping_) return;
  if (ucx_) {
    ucx_->Wake();
  } else {
    shared_->Wake();
  }
}

}  // namespace muster
