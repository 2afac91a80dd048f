#include "lib/listener/grpc_listener.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/listener/http2_frame.h"
#include "lib/status/status.h"
#include "lib/transport/tcp/tcp_socket.h"

namespace muster {
namespace {

constexpr size_t kPieceBytes = TlsConnection::kRecordBytes;
constexpr int kPiecesAtOnce = 8;  // of one connection, before others have their turn
constexpr int kBacklog = 1024;
constexpr int kAcceptsAtOnce = 64;             // before open connections have their turn
constexpr double kTurnedAwayPerSecond = 5000;  // costs a tenth of a processor, or less
constexpr absl::Duration kTellInterval = absl::Seconds(1);
constexpr absl::Duration kTick = absl::Milliseconds(20);
constexpr absl::Duration kIdleTick = absl::Seconds(1);  // while there are no connections
// The time that a client has to read the last bytes of a server that has closed its end.
constexpr absl::Duration kFarewellMax = absl::Seconds(10);
constexpr absl::Duration kReliefInterval = absl::Milliseconds(200);
constexpr int kDescriptorsOfConnection = 3;
constexpr int kOtherDescriptors = 512;  // for the store, checkpoints, logs

// Keys of watched descriptors: a listener, the waker, or a connection's number with a mark for its
// server's side.
constexpr uint64_t kListener = 0;
constexpr uint64_t kServerSide = uint64_t{1} << 63;
constexpr uint64_t kWaker = kServerSide;

struct Wanted {
  bool in, out;
};
uint32_t Events(Wanted wanted) {
  return (wanted.in ? uint32_t{EPOLLIN} : 0) | (wanted.out ? uint32_t{EPOLLOUT} : 0);
}

absl::StatusOr<FileDescriptor> ListenAt(const SocketAddress& address) {
  FileDescriptor listener(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1, off = 0;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.family() == AF_INET6) {
    setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (bind(listener.get(), address.data(), address.size()) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    return absl::UnavailableError(absl::StrCat(address.ToString(), ": ", std::strerror(errno)));
  }
  return listener;
}

absl::StatusOr<std::vector<FileDescriptor>> ListenAtAll(const std::string& host, uint16_t port) {
  std::vector<FileDescriptor> listeners;
  if (host == "0.0.0.0" ||
      host == "::") {  // one listener for both families, if the kernel has IPv6
    auto listener = ListenAt(SocketAddress::AnyV6(port));
    if (!listener.ok()) listener = ListenAt(SocketAddress::AnyV4(port));
    RETURN_IF_ERROR(listener.status());
    listeners.push_back(*std::move(listener));
    return listeners;
  }
  ASSIGN_OR_RETURN(const auto addresses, SocketAddress::Resolve(host, port));
  absl::Status fault = absl::UnavailableError("the host has no address");
  for (const SocketAddress& address : addresses) {
    auto listener = ListenAt(address);
    if (!listener.ok()) {
      fault = listener.status();
    } else {
      listeners.push_back(*std::move(listener));
      if (port == 0) break;  // the same port need not be free at another address
    }
  }
  if (listeners.empty()) return fault;
  return listeners;
}

auto ReaderOf(int socket, TlsConnection* tls) {
  return [socket, tls](char* bytes, size_t size) {
    return tls != nullptr ? tls->Read(bytes, size) : recv(socket, bytes, size, MSG_DONTWAIT);
  };
}
auto WriterOf(int socket, TlsConnection* tls) {
  return [socket, tls](const char* bytes, size_t size) {
    return tls != nullptr ? tls->Write(bytes, size)
                          : send(socket, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  };
}

// Returns how many connections to accept: `wanted`, or fewer if the limit of descriptors is too
// low. It first raises that limit as far as this process may. Unauthenticated peers must not take
// the descriptors that the rest of the process needs.
int ConnectionsFor(int wanted) {
  const int64_t needed = int64_t{wanted} * kDescriptorsOfConnection + kOtherDescriptors;
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  if (limit.rlim_cur < static_cast<rlim_t>(needed)) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur == RLIM_INFINITY) return wanted;
  const auto descriptors = static_cast<int64_t>(limit.rlim_cur);
  return static_cast<int>(
      std::clamp<int64_t>((descriptors - kOtherDescriptors) / kDescriptorsOfConnection, 1, wanted));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcListener>> GrpcListener::Listen(const std::string& host_port,
                                                                   const Options& options) {
  const size_t colon = host_port.rfind(':');
  int port = -1;
  if (colon == std::string::npos || !absl::SimpleAtoi(host_port.substr(colon + 1), &port) ||
      port < 0 || port > std::numeric_limits<uint16_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("'", host_port, "' is no host:port"));
  }
  absl::string_view host = absl::string_view(host_port).substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  ASSIGN_OR_RETURN(auto listeners, ListenAtAll(host.empty() ? "0.0.0.0" : std::string(host),
                                               static_cast<uint16_t>(port)));
  Options possible = options;
  possible.connections_max = ConnectionsFor(options.connections_max);
  // Connections without a member's certificate get at most a fifth of the places, but at least one.
  possible.unknown_max = std::min(options.unknown_max, std::max(1, possible.connections_max / 5));
  if (possible.connections_max < options.connections_max) {
    LOG(WARNING) << "at most " << possible.connections_max
                 << " connections, because of the limit of file "
                 << "descriptors: raise it (ulimit -n)";
  }
  FileDescriptor events(epoll_create1(EPOLL_CLOEXEC)), waker(eventfd(0, EFD_CLOEXEC));
  epoll_event woken = {.events = EPOLLIN, .data = {.u64 = kWaker}};
  if (!events || !waker || epoll_ctl(events.get(), EPOLL_CTL_ADD, waker.get(), &woken) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("epoll: ", std::strerror(errno)));
  }
  return std::unique_ptr<GrpcListener>(
      new GrpcListener(possible, std::move(listeners), std::move(events), std::move(waker)));
}

GrpcListener::GrpcListener(const Options& options, std::vector<FileDescriptor> listeners,
                           FileDescriptor events, FileDescriptor waker)
    : options_(options),
      listeners_(std::move(listeners)),
      events_(std::move(events)),
      waker_(std::move(waker)),
      port_(SocketAddress::LocalOf(listeners_.front().get()).port()),
      of_source_max_(
          std::max(1, static_cast<int>(options.address_share * (options.tls != nullptr
                                                                    ? options.unknown_max
                                                                    : options.connections_max)))),
      now_(SteadyNow()),
      accepts_(options.connections_per_second * absl::ToDoubleSeconds(kSaved)),
      returns_(options.returns_per_second * absl::ToDoubleSeconds(kSaved)),
      turns_away_(kTurnedAwayPerSecond),
      saved_(now_),
      counting_(now_) {}

GrpcListener::~GrpcListener() {
  {
    absl::MutexLock lock(&mu_);
    wanted_ = State::kClosed;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
}

void GrpcListener::Open(std::function<void(int)> serve) {
  CHECK(!thread_.joinable()) << "Open() was called twice";
  serve_ = std::move(serve);
  thread_ = std::thread([this] { Run(); });
}

void GrpcListener::StopAccepting() {
  absl::MutexLock lock(&mu_);
  wanted_ = State::kStaying;
  Wake();
  auto stopped = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return is_ == State::kStaying; };
  if (thread_.joinable()) mu_.Await(absl::Condition(&stopped));
}

void GrpcListener::Wake() {
  const uint64_t one = 1;
  PCHECK(write(waker_.get(), &one, sizeof(one)) == sizeof(one));
}

void GrpcListener::Run() {
  // A client that hangs up while OpenSSL writes to it must not end the process.
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  std::array<epoll_event, 256> events;
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      is_ = wanted_;
      if (is_ == State::kClosed) return connections_.clear();
      accepting_ = is_ == State::kAccepting;
    }
    LookAtClock();
    const absl::Duration tick = connections_.empty() && listening_ ? kIdleTick : kTick;
    const int count = epoll_wait(events_.get(), events.data(), static_cast<int>(events.size()),
                                 static_cast<int>(absl::ToInt64Milliseconds(tick)));
    now_ = SteadyNow();
    for (int i = 0; i < count; ++i) {
      const uint64_t key = events[i].data.u64;
      if (key == kListener) {
        Accept();
      } else if (key == kWaker) {
        uint64_t wakes;
        [[maybe_unused]] const ssize_t bytes = read(waker_.get(), &wakes, sizeof(wakes));
      } else {
        HandleEvent(key & ~kServerSide, (key & kServerSide) != 0, events[i].events);
      }
    }
  }
}

// ---------------------------------------------------------------- accepting

void GrpcListener::Accept() {
  for (const FileDescriptor& listener : listeners_) {
    for (int i = 0; i < kAcceptsAtOnce && may_accept(); ++i) {
      FileDescriptor client(
          accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!client) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
          PLOG_EVERY_N(WARNING, 100) << "cannot accept a connection; trying again";
          accepts_ = -options_.connections_per_second;  // pause: a descriptor may become free
        }
        break;
      }
      std::string source = SocketAddress::RemoteOf(client.get()).source();
      if (!HasTurn(source) || !MakeRoomForSource(source)) continue;
      if (static_cast<int>(connections_.size()) >= options_.connections_max && !MakeRoom() &&
          !MakeRoomOfLargest(source)) {
        LOG_IF(WARNING, MayTell()) << "a connection is refused: " << connections_.size()
                                   << " are open, the limit, and all have calls";
        continue;
      }
      Admit(std::move(client), std::move(source));
    }
  }
}

// Whether another connection may be accepted now. A few more are accepted than the limit allows, so
// that an address that has its turn need not wait.
bool GrpcListener::may_accept() const {
  return accepts_ > -options_.connections_per_second && turns_away_ >= 1;
}

// Whether to keep a new connection of this source. If more connections arrive than the limit
// allows, each address gets the same number of turns per second. A connection without a turn is
// closed at once, which costs little. In the kernel's queue it would delay others.
bool GrpcListener::HasTurn(const std::string& source) {
  const int came = ++came_[source];
  const double fair =
      std::max(1.0, options_.connections_per_second / static_cast<double>(came_.size() + 1));
  if (accepts_ < 1 && came > fair) {
    turns_away_ -= 1;
    LOG_IF(WARNING, MayTell()) << "too many new connections: closed one of " << source
                               << ", which has had its turn";
    return false;
  }
  accepts_ -= 1;
  return true;
}

// Whether to log a line that an unauthenticated peer has caused. Such lines could fill the disk, so
// they are limited.
bool GrpcListener::MayTell() {
  if (now_ - told_ < kTellInterval) return false;
  told_ = now_;
  return true;
}

// Closes the source's idlest connection if the source has as many as it may have, so that others
// are not affected. Returns false if there is no room for one more.
bool GrpcListener::MakeRoomForSource(const std::string& source) {
  const auto counted = of_source_.find(source);
  if (counted == of_source_.end() || counted->second < of_source_max_) return true;
  const bool made = MakeRoom(source);
  LOG_IF(WARNING, MayTell()) << source << " has " << of_source_max_
                             << " connections, the most that it may have"
                             << (options_.tls != nullptr ? " without certificates" : "") << ": "
                             << (made ? "closed its idlest one" : "refused one more");
  return made;
}

// Closes the idlest connection without open calls. That does little harm: its client can connect
// again.
bool GrpcListener::MakeRoom(absl::string_view source) {
  const Connections::value_type* idlest = nullptr;
  for (const auto& entry : connections_) {
    if (entry.second->credit.open() > 0) continue;
    if (!source.empty() && entry.second->source != source) continue;
    if (idlest == nullptr || entry.second->active < idlest->second->active) idlest = &entry;
  }
  if (idlest == nullptr) return false;
  Close(idlest->first);
  return true;
}

// A member has a connection or two. A client with a member's certificate may have any number, with
// a call on each. But a real member's connection is never silent for long, so the idlest one is
// closed.
bool GrpcListener::MakeRoomOfLargest(absl::string_view newcomer) {
  // Unauthenticated peers have their own places. The new connection may become one more of them.
  if (static_cast<int>(unknown_.size()) >= options_.unknown_max) {
    Close(*unknown_.begin());
    return true;
  }
  absl::flat_hash_map<absl::string_view, int> has;
  for (const auto& [number, connection] : connections_) ++has[connection->from];
  const auto largest = std::ranges::max_element(has, {}, [](const auto& it) { return it.second; });
  if (largest == has.end() || largest->first == newcomer ||
      largest->second <= options_.connections_max / 4) {
    return false;
  }
  const Connections::value_type* idlest = nullptr;
  for (const auto& entry : connections_) {
    if (entry.second->from != largest->first) continue;
    if (idlest == nullptr || entry.second->active < idlest->second->active) idlest = &entry;
  }
  LOG_IF(WARNING, MayTell()) << "all " << connections_.size() << " connections have calls, "
                             << largest->second << " of them of " << largest->first
                             << ": closed its idlest one";
  Close(idlest->first);
  return true;
}

void GrpcListener::Admit(FileDescriptor client, std::string source) {
  const int on = 1;
  setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  std::string address = SocketAddress::RemoteOf(client.get()).ToString();
  std::string from = source;
  const uint64_t number = next_number_++;
  Connection& connection = *connections_
                                .emplace(number, std::unique_ptr<Connection>(new Connection{
                                                     .client = std::move(client),
                                                     .address = std::move(address),
                                                     .from = std::move(from),
                                                     .source = std::move(source),
                                                     .credit = CallCredit(options_.credit, now_),
                                                     .opened = now_,
                                                     .active = now_}))
                                .first->second;
  ++of_source_[connection.source];
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = number}};
  PCHECK(epoll_ctl(events_.get(), EPOLL_CTL_ADD, connection.client.get(), &event) == 0);
  connection.client_events = EPOLLIN;
  if (options_.tls != nullptr) {
    connection.tls =
        std::make_unique<TlsConnection>(options_.tls->Context(), connection.client.get());
    connection.handshaking = true;
  } else if (!Serve(number, connection, std::nullopt)) {
    Close(number);
  }
}

void GrpcListener::Handshake(uint64_t number, Connection& connection) {
  uint32_t events = EPOLLIN;
  switch (connection.tls->Handshake()) {
    case TlsConnection::Progress::kFailed:
      LOG_IF(WARNING, MayTell()) << connection.address
                                 << " is refused: TLS: " << connection.tls->fault();
      return Close(number);
    case TlsConnection::Progress::kWantsWrite:
      events = EPOLLOUT;
      [[fallthrough]];
    case TlsConnection::Progress::kWantsRead: {
      if (std::exchange(connection.client_events, events) == events) return;
      epoll_event event = {.events = events, .data = {.u64 = number}};
      PCHECK(epoll_ctl(events_.get(), EPOLL_CTL_MOD, connection.client.get(), &event) == 0);
      return;
    }
    case TlsConnection::Progress::kDone:
      break;
  }
  connection.handshaking = false;
  const auto peer = connection.tls->peer();
  if (!peer.ok()) {
    LOG_IF(WARNING, MayTell()) << connection.address
                               << " is refused: its certificate: " << peer.status().message();
    return Close(number);
  }
  connection.certificate_ends = connection.tls->peer_ends();
  // Submitters may be many, on unmanaged machines. So places are kept for the members
  // of the cluster.
  connection.known = peer->has_value() && (*peer)->role != Role::kSubmitter;
  if (connection.known) Uncount(connection);
  if (!Serve(number, connection, *peer)) return Close(number);
  if (!connection.known) {
    unknown_.insert(number);
    MakeRoomAmongUnknown();
  }
  PassOn(number, connection, {.up = true});
}

// Closes the oldest connection without a member's certificate if there are too many. The newest one
// is the last in the order.
void GrpcListener::MakeRoomAmongUnknown() {
  if (static_cast<int>(unknown_.size()) <= options_.unknown_max) return;
  LOG_IF(WARNING, MayTell()) << "more than " << options_.unknown_max
                             << " connections have shown no certificate: closed the oldest";
  Close(*unknown_.begin());
}

// Gives the server one end of a socket pair. The listener keeps the other end and forwards bytes
// between it and the client.
bool GrpcListener::Serve(uint64_t number, Connection& connection,
                         const std::optional<Identity>& client) {
  if (!accepting_) return false;  // no connection is served any more
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) {
    PLOG_EVERY_N(WARNING, 100) << "refused a connection";
    return false;
  }
  connection.server = FileDescriptor(pair[0]);
  if (!options_.stamp_field.empty()) {
    connection.stamp = std::make_unique<CallStamp>(options_.stamp_field,
                                                   options_.stamp(client, connection.address));
  }
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = number | kServerSide}};
  PCHECK(epoll_ctl(events_.get(), EPOLL_CTL_ADD, pair[0], &event) == 0);
  connection.server_events = EPOLLIN;
  serve_(pair[1]);
  return true;
}

// ---------------------------------------------------------------- forwarding

void GrpcListener::HandleEvent(uint64_t number, bool server_side, uint32_t events) {
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;  // closed by an earlier event
  Connection& connection = *found->second;
  connection.active = now_;
  const bool hung_up = (events & (EPOLLHUP | EPOLLERR)) != 0;
  if (hung_up && !server_side) return Close(number);
  if (connection.handshaking) return Handshake(number, connection);
  if (hung_up) connection.server_gone = true;
  const bool readable = (events & EPOLLIN) != 0, writable = (events & EPOLLOUT) != 0;
  PassOn(number, connection,
         {.up = server_side ? writable : readable,
          .down = server_side ? readable || hung_up : writable});
}

void GrpcListener::PassOn(uint64_t number, Connection& connection, Ways ways) {
  const int before = connection.credit.open();
  // The server's bytes are passed first, because they end calls and so give credit for new ones.
  bool stays = !ways.down || PassDown(connection) == Fate::kStays;
  ways.up |= connection.credit.waiting();
  if (stays && ways.up && !connection.server_gone) stays = PassUp(connection) == Fate::kStays;
  if (!connection.known) calls_ += connection.credit.open() - before;
  if (!stays) return Close(number);
  Watch(number, connection);
}

GrpcListener::Fate GrpcListener::PassUp(Connection& connection) {
  // If memory is short or the server is crowded, `above` lets only connections with much saved
  // credit begin calls.
  const CallCredit::Terms terms = {
      .open_max =
          connection.known || calls_ < options_.calls_max ? options_.credit.most : kCallsAlways,
      .above = memory_short_ || crowded_ ? options_.credit.first - kCallsAlways : 0.0};
  return Pass(connection.up, connection.stamp.get(),
              ReaderOf(connection.client.get(), connection.tls.get()),
              WriterOf(connection.server.get(), nullptr), [&](absl::string_view bytes) {
                return connection.credit.PassToServer(bytes, terms, now_);
              });
}

GrpcListener::Fate GrpcListener::PassDown(Connection& connection) {
  return Pass(connection.down, nullptr, ReaderOf(connection.server.get(), nullptr),
              WriterOf(connection.client.get(), connection.tls.get()),
              [&](absl::string_view bytes) -> absl::StatusOr<size_t> {
                // While the server is crowded, calls that end find no returns and give no credit
                // back.
                double none = 0;
                return connection.credit.PassToClient(bytes, crowded_ ? none : returns_);
              });
}

template <typename Read, typename Write, typename Judge>
GrpcListener::Fate GrpcListener::Pass(Way& way, CallStamp* stamp, Read read, Write write,
                                      Judge judge) {
  // All connections share one buffer. A direction keeps only the bytes that could not be forwarded.
  std::string& piece = piece_;
  piece = way.held;
  size_t passed = way.passed;
  for (int pieces = 0; pieces <= kPiecesAtOnce; ++pieces) {
    const auto more = judge(absl::string_view(piece).substr(passed));
    if (!more.ok()) return Fate::kEnds;
    if (stamp != nullptr) {
      stamped_.clear();
      stamp->Append(absl::string_view(piece).substr(passed, *more), stamped_);
      piece.replace(passed, *more, stamped_);
      passed += stamped_.size();
    } else {
      passed += *more;
    }
    if (passed > 0) {
      const ssize_t sent = write(piece.data(), passed);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return Fate::kEnds;
      const size_t gone = static_cast<size_t>(std::max<ssize_t>(sent, 0));
      passed -= gone;
      piece.erase(0, gone);
    }
    // If nothing may pass although a header is complete, a call waits for credit.
    if (passed > 0 || piece.size() >= Http2Frame::kHeaderBytes || pieces == kPiecesAtOnce) break;
    const size_t had = piece.size();
    piece.resize(had + kPieceBytes);
    const ssize_t came = read(piece.data() + had, kPieceBytes);
    const bool none_yet = came < 0 && (errno == EAGAIN || errno == EINTR);
    piece.resize(had + static_cast<size_t>(std::max<ssize_t>(came, 0)));
    if (none_yet) break;
    if (came <= 0) return Fate::kEnds;
  }
  // A large buffer is freed when only a few bytes are left in it.
  if (way.held.capacity() > kPieceBytes / 16 && piece.size() < Http2Frame::kHeaderBytes) {
    way.held = {};
  }
  way.held = piece;
  way.passed = passed;
  return Fate::kStays;
}

// Selects the events to wait for. The listener does not read from a client that takes no answers:
// answers to its requests would pile up.
void GrpcListener::Watch(uint64_t number, Connection& connection) {
  auto watch = [&](const FileDescriptor& fd, uint64_t key, uint32_t events, uint32_t& watched) {
    if (std::exchange(watched, events) == events) return;
    epoll_event event = {.events = events, .data = {.u64 = key}};
    PCHECK(epoll_ctl(events_.get(), EPOLL_CTL_MOD, fd.get(), &event) == 0);
  };
  const bool up_stands =
      connection.up.passed > 0 || connection.up.held.size() >= Http2Frame::kHeaderBytes;
  const bool down_stands = connection.down.passed > 0;
  watch(connection.client, number,
        Events({.in = !up_stands && !down_stands && !connection.server_gone,
                .out = down_stands || connection.server_gone}),
        connection.client_events);
  if (connection.server_gone) {
    // A closed descriptor would stay ready, so it is not watched any more.
    epoll_ctl(events_.get(), EPOLL_CTL_DEL, connection.server.get(), nullptr);
    return;
  }
  watch(connection.server, number | kServerSide,
        Events({.in = !down_stands, .out = connection.up.passed > 0}), connection.server_events);
}

void GrpcListener::Uncount(Connection& connection) {
  const auto counted = of_source_.find(std::exchange(connection.source, ""));
  if (counted != of_source_.end() && --counted->second == 0) of_source_.erase(counted);
}

void GrpcListener::Close(uint64_t number) {
  const auto found = connections_.find(number);
  Uncount(*found->second);
  if (!found->second->known) calls_ -= found->second->credit.open();
  unknown_.erase(number);
  connections_.erase(found);
}

// ---------------------------------------------------------------- time

void GrpcListener::LookAtClock() {
  now_ = SteadyNow();
  LookAtMemory();
  crowded_ = options_.crowded != nullptr && options_.crowded();
  auto save = [&](double saved, double per_second) {
    return std::min(saved + per_second * absl::ToDoubleSeconds(now_ - saved_),
                    per_second * absl::ToDoubleSeconds(kSaved));
  };
  accepts_ = save(accepts_, options_.connections_per_second);
  turns_away_ = save(turns_away_, kTurnedAwayPerSecond);
  if (now_ - counting_ > absl::Seconds(1)) {
    came_.clear();
    counting_ = now_;
  }
  returns_ = save(returns_, options_.returns_per_second);
  saved_ = now_;
  WatchListeners(accepting_ && may_accept());

  const absl::Time wall = absl::Now();
  // The loop only collects numbers, because Close() and PassOn() change connections_.
  std::vector<uint64_t> waiting, late;
  for (const auto& [number, connection] : connections_) {
    const bool silent =
        !connection->credit.greeted() && now_ - connection->opened > options_.greeting_max;
    const bool gone = connection->server_gone && now_ - connection->active > kFarewellMax;
    const bool ended = connection->certificate_ends < wall;
    if (ended) {
      LOG(WARNING) << connection->address << ": its certificate expired at "
                   << absl::FormatTime(connection->certificate_ends) << ": closed its connection";
    }
    if (silent || gone || ended) {
      late.push_back(number);
    } else if (connection->credit.waiting()) {
      waiting.push_back(number);
    }
  }
  for (const uint64_t number : late) Close(number);
  for (const uint64_t number : waiting) PassOn(number, *connections_.at(number), {.up = true});
}

void GrpcListener::LookAtMemory() {
  const int64_t most = options_.resident_bytes_max;
  memory_short_ = options_.resident_bytes() > most;
  if (!memory_short_ || now_ - relieved_ < kReliefInterval) return;
  // Freed memory counts as the process's until malloc returns it.
  malloc_trim(0);
  const int64_t resident = options_.resident_bytes();
  LOG_EVERY_T(WARNING, 1) << "short of memory: " << resident << " bytes of " << most << ", "
                          << connections_.size() << " connections have " << calls_ << " calls";
  if (resident > most) HangUpOnLargest(resident - most * 3 / 4);
  relieved_ = now_;
}

void GrpcListener::HangUpOnLargest(int64_t bytes) {
  std::vector<std::pair<int64_t, uint64_t>> large;
  for (const auto& [number, connection] : connections_) {
    const int64_t has = connection->credit.message_bytes();
    if (has > options_.spared_bytes) large.emplace_back(has, number);
  }
  std::sort(large.rbegin(), large.rend());
  for (size_t i = 0; i < large.size() && bytes > 0; ++i) {
    bytes -= large[i].first;
    LOG_EVERY_T(WARNING, 1) << "short of memory: closed a connection with up to " << large[i].first
                            << " bytes of messages under way";
    Close(large[i].second);
  }
}

int64_t GrpcListener::ResidentBytes() {
  char text[64] = {};
  const FileDescriptor file(open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  long long size = 0, resident = 0;
  if (read(file.get(), text, sizeof(text) - 1) <= 0 ||
      sscanf(text, "%lld %lld", &size, &resident) != 2) {
    return 0;
  }
  return resident * sysconf(_SC_PAGESIZE);
}

void GrpcListener::WatchListeners(bool on) {
  if (std::exchange(listening_, on) == on) return;
  for (const FileDescriptor& listener : listeners_) {
    epoll_event event = {.events = EPOLLIN, .data = {.u64 = kListener}};
    PCHECK(epoll_ctl(events_.get(), on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listener.get(), &event) ==
           0);
  }
}

}  // namespace muster
