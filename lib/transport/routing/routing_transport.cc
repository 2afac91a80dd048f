#include "lib/transport/routing/routing_transport.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/status/status.h"
#include "lib/transport/core/address_envelope.h"
#include "lib/transport/shm/shared_memory_transport.h"
#include "lib/transport/tcp/tcp_transport.h"
#include "lib/transport/ucx/rdma_backend.h"

namespace muster {
namespace {

constexpr absl::string_view kAddressMark = "MUR2";
constexpr int kPathBits = 2;

// The address of one backend inside the address.
struct Part {
  LinkKind kind;
  absl::string_view address;
};

char LetterOf(LinkKind kind) {
  switch (kind) {
    case LinkKind::kSharedMemory:
      return 's';
    case LinkKind::kTcp:
      return 't';
    case LinkKind::kRdma:
      return 'r';
    case LinkKind::kAuto:
      break;
  }
  LOG(FATAL) << "no transport backend has this kind";
}

absl::string_view NameOf(LinkKind links) {
  switch (links) {
    case LinkKind::kAuto:
      return "auto";
    case LinkKind::kSharedMemory:
      return "shm";
    case LinkKind::kTcp:
      return "tcp";
    case LinkKind::kRdma:
      return "rdma";
  }
  return "";
}

// The address is sealed. For each part it has a letter, its length (2 bytes, little-endian) and its
// bytes.
void Append(std::string& address, LinkKind kind, absl::string_view part) {
  CHECK_LT(part.size(), 1u << 16);
  absl::StrAppend(&address, std::string(1, LetterOf(kind)),
                  std::string(1, static_cast<char>(part.size())),
                  std::string(1, static_cast<char>(part.size() >> 8)), part);
}

// Returns the parts of the address. Skips those of kinds that this version does not know.
absl::StatusOr<std::vector<Part>> Split(absl::string_view address) {
  ASSIGN_OR_RETURN(absl::string_view rest,
                   OpenAddress(kAddressMark, address, "address of a Muster transport"));
  std::vector<Part> parts;
  while (!rest.empty()) {
    const auto byte = [rest](size_t i) { return static_cast<uint8_t>(rest[i]); };
    const size_t length = rest.size() < 3 ? rest.size() : byte(1) | byte(2) << 8;
    if (rest.size() < 3 + length) {
      return absl::InvalidArgumentError(
          absl::StrCat("these ", address.size(), " bytes are a truncated address"));
    }
    for (const LinkKind kind : {LinkKind::kSharedMemory, LinkKind::kTcp, LinkKind::kRdma}) {
      if (rest[0] == LetterOf(kind)) parts.push_back({kind, rest.substr(3, length)});
    }
    rest.remove_prefix(3 + length);
  }
  return parts;
}

class AllRegistrations : public Transport::MemoryRegistration {
 public:
  std::vector<std::unique_ptr<MemoryRegistration>> parts;
};

}  // namespace

absl::StatusOr<LinkKind> ParseLinkKind(absl::string_view word) {
  for (LinkKind links :
       {LinkKind::kAuto, LinkKind::kSharedMemory, LinkKind::kTcp, LinkKind::kRdma}) {
    if (word == NameOf(links)) return links;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("must be auto, shm, tcp or rdma (is '", word, "')"));
}

class RoutingTransport::BackendReceiver : public MessageReceiver {
 public:
  explicit BackendReceiver(int path) : path_(path) {}

  void PeerJoined(PeerId peer, const LinkIdentity& who) override {
    receiver->PeerJoined(Outer(peer, path_), who);
  }
  PayloadPlace PlacePayload(PeerId from, const WireHeader& header) override {
    return receiver->PlacePayload(Outer(from, path_), header);
  }
  void Received(PeerId from, const WireHeader& header, absl::Span<const std::byte> payload,
                PayloadLease lease) override {
    receiver->Received(Outer(from, path_), header, payload, std::move(lease));
  }
  void PayloadLost(PeerId from, const WireHeader& header) override {
    receiver->PayloadLost(Outer(from, path_), header);
  }
  void PeerLost(PeerId peer, const absl::Status& why) override {
    receiver->PeerLost(Outer(peer, path_), why);
  }

  MessageReceiver* receiver = nullptr;

 private:
  const int path_;
};

absl::StatusOr<std::unique_ptr<RoutingTransport>> RoutingTransport::Create(
    RoutingTransportOptions options) {
  ASSIGN_OR_RETURN(std::unique_ptr<EventLoop> loop, EventLoop::Create(options.polling));
  std::vector<Path> paths;
  const auto add = [&paths](LinkKind kind, std::unique_ptr<TransportBackend> backend) {
    const int path = static_cast<int>(paths.size());
    paths.push_back({kind, std::make_unique<BackendReceiver>(path), std::move(backend)});
  };
  if (options.links == LinkKind::kAuto || options.links == LinkKind::kSharedMemory) {
    auto made = SharedMemoryTransport::Create(loop.get());
    if (made.ok()) {
      add(LinkKind::kSharedMemory, *std::move(made));
    } else if (options.links == LinkKind::kSharedMemory) {
      return Annotate(made.status(), "--transport=shm");
    } else {
      LOG(WARNING) << "no shared memory; peers on this host are reached like all others: "
                   << made.status();
    }
  }
  if (options.links == LinkKind::kAuto || options.links == LinkKind::kTcp) {
    CHECK(options.port != nullptr) << "TCP needs a port";
    ASSIGN_OR_RETURN(auto made,
                     TcpTransport::Create(loop.get(), {.port = std::move(options.port),
                                                       .connections = options.connections}));
    add(LinkKind::kTcp, std::move(made));
  }
  if (options.links == LinkKind::kRdma) {
    absl::StatusOr<std::unique_ptr<TransportBackend>> made = MakeRdmaBackend(loop.get());
    if (!made.ok()) return Annotate(made.status(), "--transport=rdma");
    add(LinkKind::kRdma, *std::move(made));
  }
  return absl::WrapUnique(new RoutingTransport(options.links, std::move(loop), std::move(paths)));
}

RoutingTransport::RoutingTransport(LinkKind links, std::unique_ptr<EventLoop> loop,
                                   std::vector<Path> paths)
    : TransportBackend(loop.get()),
      links_(links),
      loop_(std::move(loop)),
      paths_(std::move(paths)),
      address_([this] {
        std::string parts;
        for (const Path& path : paths_) Append(parts, path.kind, path.backend->address());
        return SealAddress(kAddressMark, parts);
      }()) {
  CHECK(!paths_.empty());
}

RoutingTransport::~RoutingTransport() = default;

void RoutingTransport::SetReceiver(MessageReceiver* receiver) {
  for (const Path& path : paths_) {
    path.receiver->receiver = receiver;
    path.backend->SetReceiver(path.receiver.get());
  }
}

std::string RoutingTransport::name() const {
  return absl::StrJoin(paths_, "+", [](std::string* out, const Path& path) {
    absl::StrAppend(out, path.backend->name());
  });
}

void RoutingTransport::OpenSession(uint64_t job, uint32_t generation, const SessionToken& token) {
  for (const Path& path : paths_) path.backend->OpenSession(job, generation, token);
}

void RoutingTransport::CloseSession(uint64_t job, uint32_t generation) {
  for (const Path& path : paths_) path.backend->CloseSession(job, generation);
}

absl::StatusOr<PeerId> RoutingTransport::Connect(absl::string_view address,
                                                 const LinkCredentials& credentials) {
  ASSIGN_OR_RETURN(const std::vector<Part> parts, Split(address));
  std::string obstacle;  // the obstacle to shared memory, if both sides have it
  // The order of paths_ is the order of preference: the first backend that both sides have and that
  // reaches the peer is used.
  for (int i = 0; i < std::ssize(paths_); ++i) {
    const Path& path = paths_[i];
    const auto part = std::ranges::find(parts, path.kind, &Part::kind);
    if (part == parts.end()) continue;
    if (path.kind == LinkKind::kSharedMemory && !SharedMemoryTransport::IsLocal(part->address)) {
      obstacle = SharedMemoryTransport::ObstacleTo(part->address);
      continue;
    }
    ASSIGN_OR_RETURN(const PeerId inner, path.backend->Connect(part->address, credentials));
    const PeerId peer = Outer(inner, i);
    if (!obstacle.empty()) fallbacks_[peer] = absl::StrCat("one host, but ", obstacle);
    return peer;
  }
  const std::string theirs = absl::StrJoin(parts, " and ", [](std::string* out, const Part& part) {
    absl::StrAppend(out, NameOf(part.kind));
  });
  return absl::FailedPreconditionError(
      absl::StrCat("no path to this peer: this side has --transport=", NameOf(links_),
                   ", the peer has ", theirs.empty() ? "none that this version knows" : theirs,
                   "; shared memory needs the same host, user and network namespace; "
                   "--transport=auto on both sides reaches every peer"));
}

PeerId RoutingTransport::Outer(PeerId inner, int path) {
  return PeerId{(static_cast<int32_t>(inner) << kPathBits) | path};
}
PeerId RoutingTransport::Inner(PeerId peer) {
  return PeerId{static_cast<int32_t>(peer) >> kPathBits};
}

TransportBackend& RoutingTransport::BackendOf(PeerId peer) const {
  const auto path = static_cast<size_t>(static_cast<int32_t>(peer) & ((1 << kPathBits) - 1));
  CHECK(peer != PeerId::kNone && path < paths_.size()) << "no peer " << static_cast<int>(peer);
  return *paths_[path].backend;
}

void RoutingTransport::Disconnect(PeerId peer) {
  fallbacks_.erase(peer);
  BackendOf(peer).Disconnect(Inner(peer));
}

void RoutingTransport::CutOff(PeerId peer) {
  fallbacks_.erase(peer);
  BackendOf(peer).CutOff(Inner(peer));
}

LinkDescription RoutingTransport::Describe(PeerId peer) const {
  LinkDescription link = BackendOf(peer).Describe(Inner(peer));
  if (const auto found = fallbacks_.find(peer); found != fallbacks_.end()) {
    link.fallback = found->second;
  }
  return link;
}

void RoutingTransport::Send(PeerId peer, const WireHeader& header,
                            absl::Span<const std::byte> payload, SendDone done) {
  BackendOf(peer).Send(Inner(peer), header, payload, std::move(done));
}

absl::StatusOr<std::unique_ptr<Transport::MemoryRegistration>> RoutingTransport::RegisterMemory(
    absl::Span<std::byte> memory) {
  auto all = std::make_unique<AllRegistrations>();
  for (const Path& path : paths_) {
    ASSIGN_OR_RETURN(auto registration, path.backend->RegisterMemory(memory));
    all->parts.push_back(std::move(registration));
  }
  return all;
}

int RoutingTransport::Advance() {
  int events = 0;
  for (const Path& path : paths_) events += path.backend->Advance();
  return events;
}

bool RoutingTransport::HasNews() const {
  return std::ranges::any_of(paths_, [](const Path& path) { return path.backend->HasNews(); });
}

void RoutingTransport::WakePeers() {
  for (const Path& path : paths_) path.backend->WakePeers();
}

// Returns whether all backends are prepared. Some may have prepared to sleep before another one has
// news. Their next Advance() undoes that.
bool RoutingTransport::PrepareToSleep() {
  return std::ranges::all_of(paths_,
                             [](const Path& path) { return path.backend->PrepareToSleep(); });
}

absl::Duration RoutingTransport::SleepMax() const {
  absl::Duration most = absl::InfiniteDuration();
  for (const Path& path : paths_) most = std::min(most, path.backend->SleepMax());
  return most;
}

}  // namespace muster
