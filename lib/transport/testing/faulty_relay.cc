#include "lib/transport/testing/faulty_relay.h"

#include <glog/logging.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "lib/transport/tcp/tcp_socket.h"

namespace muster {
namespace {

using Direction = RelayFault::Direction;
using Kind = RelayFault::Kind;

constexpr int kBacklog = 16;
constexpr size_t kHeldBytesMax = 64 << 10;

FileDescriptor MakeSocket() {
  FileDescriptor made(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  CHECK(made) << "no descriptor";
  return made;
}

FileDescriptor Listen() {
  FileDescriptor listener = MakeSocket();
  const auto anywhere = SocketAddress::Numeric("127.0.0.1", 0);
  PCHECK(bind(listener.get(), anywhere->data(), anywhere->size()) == 0);
  PCHECK(listen(listener.get(), kBacklog) == 0);
  return listener;
}

Doorbell MakeBell() {
  auto bell = Doorbell::Create();
  CHECK(bell.ok()) << bell.status();
  return *std::move(bell);
}

void ResetOnClose(int socket) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

bool IsForLater() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

// Two sockets, and the bytes that arrived at one and were not sent to the other.
struct FaultyRelay::Connection {
  struct Way {
    int from, to;
    std::vector<std::byte> held;  // valid from `sent` on
    size_t sent = 0;
    bool ended = false;           // nothing more arrives
    bool told = false;            // the end was passed on
    Clock::time_point from_then;  // nothing is sent before this time
  };

  Connection(FileDescriptor client, FileDescriptor server)
      : client(std::move(client)), server(std::move(server)) {
    ways[static_cast<size_t>(Direction::kThere)] = {this->client.get(), this->server.get()};
    ways[static_cast<size_t>(Direction::kBack)] = {this->server.get(), this->client.get()};
  }

  // Makes both ends see a reset when the sockets are closed.
  void Reset() const {
    ResetOnClose(client.get());
    ResetOnClose(server.get());
  }

  const FileDescriptor client, server;
  std::array<Way, 2> ways;  // by direction
};

FaultyRelay::FaultyRelay(uint16_t to_port, const RelayFault& fault)
    : to_port_(to_port),
      fault_(fault),
      bell_(MakeBell()),
      listener_(Listen()),
      port_(SocketAddress::LocalOf(listener_.get()).port()),
      thread_([this] { Run(); }) {}

FaultyRelay::~FaultyRelay() {
  bell_.Ring();
  thread_.join();
}

void FaultyRelay::Run() {
  while (true) {
    std::vector<pollfd> polled = {{.fd = bell_.fd(), .events = POLLIN, .revents = 0},
                                  {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    auto wake_at = Clock::time_point::max();
    const auto now = Clock::now();
    for (const Connection& connection : connections_) {
      for (const Connection::Way& way : connection.ways) {
        const bool waits = !way.held.empty() && now < way.from_then;
        if (waits) wake_at = std::min(wake_at, way.from_then);
        const bool receives = way.held.empty() && !way.ended;
        polled.push_back({.fd = receives ? way.from : -1, .events = POLLIN, .revents = 0});
        polled.push_back(
            {.fd = way.held.empty() || waits ? -1 : way.to, .events = POLLOUT, .revents = 0});
      }
    }
    int timeout = -1;
    if (wake_at != Clock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(wake_at - now);
      timeout = static_cast<int>(left.count());
    }
    poll(polled.data(), polled.size(), timeout);
    if (polled[0].revents != 0) return;
    std::erase_if(connections_, [this](Connection& connection) { return !Move(connection); });
    if (polled[1].revents != 0) Accept();
  }
}

void FaultyRelay::Accept() {
  FileDescriptor client(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!client) return;
  FileDescriptor server = MakeSocket();
  const auto to = SocketAddress::Numeric("127.0.0.1", to_port_);
  if (connect(server.get(), to->data(), to->size()) != 0 && errno != EINPROGRESS) return;
  for (const int socket : {client.get(), server.get()}) TuneLinkSocket(socket);
  connections_.emplace_back(std::move(client), std::move(server));
}

// Returns false when the connection is over.
bool FaultyRelay::Move(Connection& connection) {
  if (!MoveOneWay(connection, Direction::kThere) || !MoveOneWay(connection, Direction::kBack)) {
    return false;
  }
  return !std::ranges::all_of(connection.ways, &Connection::Way::told);
}

bool FaultyRelay::MoveOneWay(Connection& connection, Direction direction) {
  Connection::Way& way = connection.ways[static_cast<size_t>(direction)];
  if (way.held.empty() && !way.ended && !Receive(connection, direction)) return false;
  if (!way.held.empty() && Clock::now() >= way.from_then && !Send(connection, direction)) {
    return false;
  }
  if (way.held.empty() && way.ended && !std::exchange(way.told, true)) shutdown(way.to, SHUT_WR);
  return true;
}

// The fault is applied to arrived bytes before any of them is sent on.
bool FaultyRelay::Receive(Connection& connection, Direction direction) {
  Connection::Way& way = connection.ways[static_cast<size_t>(direction)];
  std::vector<std::byte> bytes(kHeldBytesMax);
  const ssize_t size = recv(way.from, bytes.data(), bytes.size(), 0);
  if (size < 0 && IsForLater()) return true;
  if (size < 0) {
    connection.Reset();
    return false;
  }
  if (size == 0) {
    way.ended = true;
    return true;
  }
  bytes.resize(size);
  std::atomic<int64_t>& all = bytes_[static_cast<size_t>(direction)];
  const int64_t place = fault_.place - all;
  all += size;
  way.held = std::move(bytes);
  way.sent = 0;
  const bool here = fault_.kind != Kind::kNone && fault_.direction == direction && place >= 0 &&
                    place < size && !happened_.exchange(true);
  if (!here) return true;
  switch (fault_.kind) {
    case Kind::kNone:
      return true;
    case Kind::kFlip:
      way.held[place] ^= static_cast<std::byte>(1 << fault_.bit);
      return true;
    case Kind::kDelay:
      way.from_then = Clock::now() + fault_.delay;
      return true;
    case Kind::kCut:
    case Kind::kReset:
      way.held.resize(place);
      if (!way.held.empty() && !Send(connection, direction)) return false;
      if (fault_.kind == Kind::kReset) connection.Reset();
      return false;
  }
  return true;
}

bool FaultyRelay::Send(Connection& connection, Direction direction) {
  Connection::Way& way = connection.ways[static_cast<size_t>(direction)];
  const ssize_t size =
      send(way.to, way.held.data() + way.sent, way.held.size() - way.sent, MSG_NOSIGNAL);
  if (size < 0 && IsForLater()) return true;
  if (size < 0) {
    connection.Reset();
    return false;
  }
  way.sent += size;
  if (way.sent == way.held.size()) way.held.clear();
  return true;
}

}  // namespace muster
