#include "lib/transport/tcp/data_port.h"

#include <glog/logging.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int kBacklog = 256;
constexpr auto kListenerPause = std::chrono::milliseconds(200);
// A connection is not crowded out before this time, except as kIdlersTime says. An honest handshake
// takes at most this: two round trips over a long distance on a busy processor.
constexpr auto kUndisturbedTime = std::chrono::milliseconds(500);
// Replaces kUndisturbedTime for a connection that has named no open session, if another such
// connection from its address was crowded out in the last kHeldAgainst.
constexpr auto kIdlersTime = std::chrono::milliseconds(50);
constexpr auto kHeldAgainst = std::chrono::seconds(10);
constexpr size_t kIdlersMax = 1024;
constexpr auto kLogInterval = std::chrono::seconds(1);
constexpr size_t kEndpointsMax = 8;

absl::StatusOr<FileDescriptor> ListenAt(const SocketAddress& address) {
  FileDescriptor listener(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener) return absl::UnavailableError(absl::StrCat("socket: ", std::strerror(errno)));
  const int on = 1, off = 0;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.family() == AF_INET6) {
    setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  SizeReceiveBuffer(listener.get());  // accepted sockets inherit the size
  if (bind(listener.get(), address.data(), address.size()) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    return absl::UnavailableError(
        absl::StrCat("listening at ", address.ToString(), ": ", std::strerror(errno)));
  }
  return listener;
}

absl::StatusOr<FileDescriptor> ListenAtPort(const std::string& host, uint16_t port) {
  if (host.empty()) {
    auto listener = ListenAt(SocketAddress::AnyV6(port));
    return listener.ok() ? std::move(listener) : ListenAt(SocketAddress::AnyV4(port));
  }
  ASSIGN_OR_RETURN(const auto addresses, SocketAddress::Resolve(host, port));
  absl::Status fault = absl::UnavailableError(absl::StrCat("'", host, "' has no address"));
  for (const SocketAddress& address : addresses) {
    auto listener = ListenAt(address);
    if (listener.ok()) return listener;
    fault = listener.status();
  }
  return fault;
}

absl::StatusOr<FileDescriptor> ListenInRange(const DataPortOptions& options) {
  absl::Status fault;
  for (int port = options.port_first; port <= std::max(options.port_first, options.port_last);
       ++port) {
    auto listener = ListenAtPort(options.bind_host, static_cast<uint16_t>(port));
    if (listener.ok()) return listener;
    fault = listener.status();
  }
  return Annotate(
      fault, options.port_last > options.port_first
                 ? absl::StrCat("no data port from ", options.port_first, " to ", options.port_last,
                                " is free; use a wider range of ports")
                 : "cannot open the data port");
}

uint64_t RandomId() {
  const std::string bytes = SessionToken::Random().ToBytes();
  uint64_t id = 0;
  std::memcpy(&id, bytes.data(), sizeof(id));
  return id;
}

int MillisecondsUntil(std::chrono::steady_clock::time_point time,
                      std::chrono::steady_clock::time_point now) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - now);
  return static_cast<int>(std::max<int64_t>(0, left.count()));
}

}  // namespace

struct DataPort::HalfOpen {
  HalfOpen(FileDescriptor socket, Clock::time_point begin, Clock::time_point deadline,
           DataSecurity security, bool checksums)
      : socket(std::move(socket)),
        source(SocketAddress::RemoteOf(this->socket.get()).source()),
        begin(begin),
        deadline(deadline),
        handshake(security, checksums) {}

  FileDescriptor socket;
  const std::string source;
  Clock::time_point begin, deadline;
  HandshakeAcceptor handshake;
};

// Announce() is called with the lock held, for listeners that the port knows. So it is never called
// after this destructor.
DataPort::Listener::~Listener() {
  absl::MutexLock lock(&port_->mu_);
  port_->listeners_.erase(number_);
  std::erase_if(port_->requests_, [this](const Request& one) { return one.listener == number_; });
}

void DataPort::Listener::OpenSession(uint64_t job, uint32_t generation, const SessionToken& token) {
  absl::MutexLock lock(&port_->mu_);
  sessions_.Open(job, generation, token);
}

void DataPort::Listener::CloseSession(uint64_t job, uint32_t generation) {
  absl::MutexLock lock(&port_->mu_);
  sessions_.Close(job, generation);
}

bool DataPort::Listener::IsOpen(uint64_t job, uint32_t generation,
                                const SessionToken& token) const {
  absl::MutexLock lock(&port_->mu_);
  const SessionToken* open = sessions_.Find(job, generation);
  return open != nullptr && *open == token;
}

void DataPort::Listener::Resolve(int64_t request, const Endpoint& endpoint) {
  absl::MutexLock lock(&port_->mu_);
  port_->requests_.push_back({number_, request, endpoint});
  if (!port_->resolver_.joinable()) {
    port_->resolver_ = std::thread([port = port_.get()] { port->ResolveNames(); });
  }
}

void DataPort::Listener::CancelResolve(int64_t request) {
  absl::MutexLock lock(&port_->mu_);
  std::erase_if(port_->requests_, [&](const Request& one) {
    return one.listener == number_ && one.number == request;
  });
}

DataPort::Listener::News DataPort::Listener::Take() {
  absl::MutexLock lock(&port_->mu_);
  // A relaxed store is enough: Announce() is called with the same lock held, so no news can arrive
  // in between.
  has_news_.store(false, std::memory_order_relaxed);
  return std::exchange(news_, {});
}

void DataPort::Listener::Announce() {
  has_news_.store(true, std::memory_order_release);
  wake_();
}

// Returns the token of the session that the hello names. An additional connection of a link names
// the generation with which the link was accepted, and the link may have outlived that generation.
// The transport checks whether such a link exists.
const SessionToken* DataPort::Listener::TokenFor(const LinkHello& hello) const {
  const LinkIdentity& who = hello.who;
  return hello.connection > 0 ? sessions_.FindSince(who.job, who.generation)
                              : sessions_.Find(who.job, who.generation);
}

absl::StatusOr<std::shared_ptr<DataPort>> DataPort::Open(DataPortOptions options) {
  if (options.security == DataSecurity::kNone) {
    LOG_FIRST_N(WARNING, 1) << "the data port accepts every peer that names an open session, "
                               "without proof (security: none)";
  }
  ASSIGN_OR_RETURN(FileDescriptor listener, ListenInRange(options));
  ASSIGN_OR_RETURN(
      std::vector<Endpoint> endpoints,
      EndpointsOf(options, SocketAddress::LocalOf(listener.get()), AddressesOfThisHost()));
  ASSIGN_OR_RETURN(Doorbell bell, Doorbell::Create());
  return absl::WrapUnique(
      new DataPort(std::move(options), std::move(listener), std::move(endpoints), std::move(bell)));
}

absl::StatusOr<std::vector<Endpoint>> DataPort::EndpointsOf(const DataPortOptions& options,
                                                            const SocketAddress& bound,
                                                            std::vector<std::string> own_hosts) {
  const bool everywhere =
      options.bind_host.empty() || bound.host() == "::" || bound.host() == "0.0.0.0";
  std::vector<std::string> hosts;
  if (!options.advertise_host.empty()) {
    hosts = {options.advertise_host};
  } else if (everywhere) {
    hosts = std::move(own_hosts);
  } else {
    hosts = {bound.host()};
  }
  const std::string all = absl::StrJoin(hosts, ", ");
  std::vector<Endpoint> endpoints;
  for (std::string& host : hosts) {
    if (endpoints.size() == kEndpointsMax) break;
    // A listener for IPv4 alone cannot be reached at IPv6 addresses.
    const auto numeric = SocketAddress::Numeric(host, 0);
    if (everywhere && numeric && numeric->family() == AF_INET6 && bound.family() == AF_INET) {
      continue;
    }
    if (host.size() > Endpoint::kHostBytesMax) continue;
    endpoints.push_back({.host = std::move(host), .port = bound.port()});
  }
  if (!endpoints.empty()) return endpoints;
  return absl::UnavailableError(absl::StrCat(
      "other hosts cannot reach the data port, which listens at ", bound.ToString(), ", at: ", all,
      " (if this host has no IPv6, set ", "--advertise to a name of at most ",
      Endpoint::kHostBytesMax, " bytes or to an IPv4 address ", "of this host)"));
}

DataPort::DataPort(DataPortOptions options, FileDescriptor listener,
                   std::vector<Endpoint> endpoints, Doorbell bell)
    : options_(std::move(options)),
      id_(RandomId()),
      listener_(std::move(listener)),
      bell_(std::move(bell)),
      port_(SocketAddress::LocalOf(listener_.get()).port()),
      endpoints_(std::move(endpoints)),
      thread_([this] { Run(); }) {}

DataPort::~DataPort() {
  std::thread resolver;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    resolver = std::move(resolver_);
  }
  // The threads are joined without the lock, because both may need it before they end.
  bell_.Ring();
  thread_.join();
  if (resolver.joinable()) resolver.join();
}

std::unique_ptr<DataPort::Listener> DataPort::MakeListener(absl::AnyInvocable<void()> wake) {
  absl::MutexLock lock(&mu_);
  auto listener =
      absl::WrapUnique(new Listener(shared_from_this(), listeners_made_++, std::move(wake)));
  listeners_[listener->number_] = listener.get();
  return listener;
}

bool DataPort::WantsChecksums(int socket) const {
  return options_.checksums == Checksums::kOn ||
         (options_.checksums == Checksums::kAuto && options_.security != DataSecurity::kEncrypt &&
          !StaysOnHost(socket));
}

int64_t DataPort::unauthenticated_peers() const {
  int64_t sum = 0;
  for (const auto& count : unauthenticated_peers_) sum += count.load();
  return sum;
}

// Runs the port's thread until the destructor rings the bell.
void DataPort::Run() {
  std::vector<pollfd> polled;
  polled.reserve(2 + kHalfOpenMax);
  while (true) {
    const auto now = Clock::now();
    GiveUpLate(now);
    const bool crowded = IsCrowded(now);
    if (crowded) {
      accept_from_ = std::max(accept_from_, UndisturbedUntil(*halves_[NextToGo()], now));
    }
    const bool accepts = now >= accept_from_;
    polled.clear();
    polled.push_back({.fd = bell_.fd(), .events = POLLIN, .revents = 0});
    polled.push_back({.fd = accepts ? listener_.get() : -1, .events = POLLIN, .revents = 0});
    for (const auto& half : halves_) {
      polled.push_back({.fd = half->socket.get(), .events = POLLIN, .revents = 0});
    }
    int timeout = accepts ? -1 : MillisecondsUntil(accept_from_, now);
    if (!halves_.empty()) {
      const int late = MillisecondsUntil(halves_.front()->deadline, now);
      timeout = timeout < 0 ? late : std::min(timeout, late);
    }
    poll(polled.data(), polled.size(), timeout);
    if (polled[0].revents != 0) return;
    size_t kept = 0;
    for (size_t i = 0; i < halves_.size(); ++i) {
      if (polled[2 + i].revents != 0 && !Continue(*halves_[i])) {
        halves_[i].reset();
      } else {
        std::swap(halves_[kept++], halves_[i]);
      }
    }
    if (crowded && kept < halves_.size()) accept_from_ = now;  // a place became free
    halves_.resize(kept);
    // Accept() comes last, because `polled` refers to the old places in halves_.
    if (polled[1].revents != 0) Accept();
  }
}

// Returns the index in halves_ of the connection to crowd out next. It is at the address that has
// the most half-open connections, so peers at other addresses are spared. There it is the oldest
// that has named no open session, or else the oldest of all.
size_t DataPort::NextToGo() const {
  struct Of {
    int count = 0;
    size_t next;
    bool is_member;
  };
  absl::flat_hash_map<absl::string_view, Of> sources;
  for (size_t i = 0; i < halves_.size(); ++i) {
    const bool is_member = halves_[i]->handshake.awaits_proof();
    Of& of = sources.try_emplace(halves_[i]->source, Of{.next = i, .is_member = is_member})
                 .first->second;
    ++of.count;
    if (of.is_member && !is_member) of = {.count = of.count, .next = i, .is_member = false};
  }
  const Of* most = nullptr;
  for (const auto& [source, of] : sources) {
    if (most == nullptr || of.count > most->count ||
        (of.count == most->count && of.next < most->next)) {
      most = &of;
    }
  }
  return most->next;
}

DataPort::Clock::time_point DataPort::UndisturbedUntil(const HalfOpen& half,
                                                       Clock::time_point now) const {
  const auto idler = idlers_.find(half.source);
  const bool sat_still =
      idler != idlers_.end() && now < idler->second && !half.handshake.awaits_proof();
  return half.begin + (sat_still ? kIdlersTime : kUndisturbedTime);
}

// Whether all places are taken, and the connection that must go next has not had its time. New
// connections then wait in the kernel's queue.
bool DataPort::IsCrowded(Clock::time_point now) const {
  return halves_.size() >= kHalfOpenMax && now < UndisturbedUntil(*halves_[NextToGo()], now);
}

void DataPort::CrowdOut(size_t place, Clock::time_point now) {
  const HalfOpen& half = *halves_[place];
  Count(UnauthenticatedPeer::kCrowdedOut, half,
        absl::ResourceExhaustedError(
            absl::StrCat("too many handshakes at a time, and ", half.source, " has most of them")));
  absl::erase_if(idlers_, [now](const auto& idler) { return idler.second <= now; });
  if (idlers_.size() < kIdlersMax && !half.handshake.awaits_proof()) {
    idlers_[half.source] = now + kHeldAgainst;
  }
  halves_.erase(halves_.begin() + static_cast<ptrdiff_t>(place));
}

void DataPort::GiveUpLate(Clock::time_point now) {
  while (!halves_.empty() && halves_.front()->deadline <= now) {
    Count(UnauthenticatedPeer::kTooSlow, *halves_.front(),
          absl::DeadlineExceededError("the handshake takes too long"));
    halves_.erase(halves_.begin());
  }
}

// Accepts at most kHalfOpenMax connections at once, so that handshakes progress during a flood.
void DataPort::Accept() {
  for (int i = 0; i < kHalfOpenMax && !IsCrowded(Clock::now()); ++i) {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == ECONNABORTED || errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      // There are no descriptors or no memory left. The connections wait in the kernel's queue. An
      // immediate retry would fail again, so the listener pauses.
      LOG_EVERY_N(WARNING, 50) << "the data port cannot accept a connection: "
                               << std::strerror(errno) << " (ulimit -n?)";
      accept_from_ = Clock::now() + kListenerPause;
      return;
    }
    const auto now = Clock::now();
    if (halves_.size() >= kHalfOpenMax) CrowdOut(NextToGo(), now);
    const bool checksums = WantsChecksums(socket.get());
    halves_.push_back(std::make_unique<HalfOpen>(
        std::move(socket), now, now + options_.handshake_time_max, options_.security, checksums));
  }
}

bool DataPort::Continue(HalfOpen& half) {
  std::array<std::byte, SessionHandshake::kHelloBytes> bytes;
  HandshakeAcceptor& handshake = half.handshake;
  while (true) {
    // Reads no more than the handshake wants, so that later bytes stay in the socket for the
    // transport.
    const ssize_t size = recv(half.socket.get(), bytes.data(), handshake.wants(), 0);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (size <= 0) {
      CountHangUp(half);
      return false;
    }
    handshake.Take(absl::MakeConstSpan(bytes).first(size), [this](const LinkHello& hello) {
      absl::MutexLock lock(&mu_);
      const Listener* listener = FindListener(hello);
      const SessionToken* token = listener == nullptr ? nullptr : listener->TokenFor(hello);
      return token == nullptr ? std::nullopt : std::optional<SessionToken>(*token);
    });
    if (handshake.proven()) {
      HandOver(half);
      return false;
    }
    if (!Reply(half)) return false;
    if (!handshake.fault().ok()) {
      Count(absl::IsInvalidArgument(handshake.fault())      ? UnauthenticatedPeer::kNotMuster
            : absl::IsFailedPrecondition(handshake.fault()) ? UnauthenticatedPeer::kDiffers
                                                            : UnauthenticatedPeer::kNotProven,
            half, handshake.fault());
      return false;
    }
  }
}

void DataPort::CountHangUp(const HalfOpen& half) {
  if (half.handshake.awaits_no_proof()) {
    return Count(UnauthenticatedPeer::kNotProven, half,
                 absl::PermissionDeniedError("the peer named a session that is not open here"));
  }
  Count(UnauthenticatedPeer::kHungUp, half,
        absl::UnavailableError("the peer hung up during the handshake (its token may differ)"));
}

// Sends the handshake's reply. Returns false if the peer is gone. A partial send means that as
// well, because a new socket has room for the few bytes of a reply.
bool DataPort::Reply(HalfOpen& half) {
  const auto reply = half.handshake.TakeReply();
  if (reply.empty()) return true;
  const ssize_t sent = send(half.socket.get(), reply.data(), reply.size(), MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(reply.size())) return true;
  CountHangUp(half);
  return false;
}

// Gives the connection to the listener that the peer has named. The verdict is sent first, so that
// no message of the transport overtakes it.
void DataPort::HandOver(HalfOpen& half) {
  half.handshake.LetIn();
  if (!Reply(half)) return;
  TuneLinkSocket(half.socket.get());
  Member member{.socket = std::move(half.socket),
                .hello = half.handshake.hello(),
                .token = half.handshake.token(),
                .checksums = half.handshake.checksums(),
                .tls_key = half.handshake.TlsKey()};
  absl::MutexLock lock(&mu_);
  Listener* listener = FindListener(member.hello);
  if (listener == nullptr) return;
  const SessionToken* open = listener->TokenFor(member.hello);
  // The session was closed meanwhile, or opened with another token: drop the connection.
  if (open == nullptr || !(*open == member.token)) return;
  listener->news_.members.push_back(std::move(member));
  members_.fetch_add(1);
  listener->Announce();
}

DataPort::Listener* DataPort::FindListener(const LinkHello& hello) {
  if (hello.port != id_) return nullptr;
  const auto found = listeners_.find(hello.transport);
  return found == listeners_.end() ? nullptr : found->second;
}

absl::string_view DataPort::NameOf(UnauthenticatedPeer why) {
  switch (why) {
    case UnauthenticatedPeer::kNotMuster:
      return "not_muster";
    case UnauthenticatedPeer::kDiffers:
      return "differs";
    case UnauthenticatedPeer::kNotProven:
      return "not_proven";
    case UnauthenticatedPeer::kHungUp:
      return "hung_up";
    case UnauthenticatedPeer::kTooSlow:
      return "too_slow";
    case UnauthenticatedPeer::kCrowdedOut:
      return "crowded_out";
  }
  return "";
}

void DataPort::Count(UnauthenticatedPeer why, const HalfOpen& half, const absl::Status& fault) {
  unauthenticated_peers_[static_cast<int>(why)].fetch_add(1);
  if (options_.turned_away) options_.turned_away(NameOf(why));
  ++unlogged_;
  const auto now = Clock::now();
  // Unauthenticated peers cause these lines, so there is at most one per second.
  if (now < log_from_) return;
  log_from_ = now + kLogInterval;
  LOG(WARNING) << "data port " << port_ << " refused "
               << SocketAddress::RemoteOf(half.socket.get()).ToString() << ": " << fault.message()
               << (unlogged_ > 1 ? absl::StrCat(" (and ", unlogged_ - 1, " others before)") : "");
  unlogged_ = 0;
}

void DataPort::ResolveNames() {
  auto called = [this]()
                    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !requests_.empty(); };
  while (true) {
    Request request;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&called));
      if (stopping_) return;
      request = std::move(requests_.front());
      requests_.pop_front();
    }
    // The lookup runs without the lock, because it may take long.
    auto addresses = options_.resolve(request.endpoint.host, request.endpoint.port);
    absl::MutexLock lock(&mu_);
    const auto listener = listeners_.find(request.listener);
    if (listener == listeners_.end()) continue;
    listener->second->news_.resolved.push_back({request.number, std::move(addresses)});
    listener->second->Announce();
  }
}

}  // namespace muster
