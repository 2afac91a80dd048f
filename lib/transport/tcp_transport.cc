#include "lib/transport/tcp_transport.h"

#include <glog/logging.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "lib/status/status.h"
#include "lib/transport/address_envelope.h"
#include "lib/transport/frame_reader.h"
#include "lib/transport/session_handshake.h"
#include "lib/transport/tls_stream.h"

namespace muster {
namespace {

constexpr absl::string_view kAddressMark = "MUT1";
constexpr size_t kEndpointsMax = 8;
constexpr int kRepeatsMax = 3;

// One payload at a time is enough, unlike where the receiver fetches: what others send meanwhile
// already waits in the receive buffers of their sockets.
constexpr FetchTurns::Options kTurns = {.fetches_min = 1};

// So much under way on every connection of a link is reason to open another.
constexpr size_t kBusyBytes = 1 << 20;

// Read from one connection before others get a turn.
constexpr size_t kReadMax = 2 << 20;
constexpr auto kLingerTime = std::chrono::seconds(5);
// When one connection of a link has ended, for what is on its way in the others.
constexpr auto kEndTime = std::chrono::seconds(2);
constexpr auto kGoodbyeTime = std::chrono::milliseconds(200);
constexpr auto kLingerLook = absl::Milliseconds(10);
constexpr auto kVanishedLook = std::chrono::seconds(2);

// What is inside the envelope: port id (8), transport (4), then of each endpoint its port (2), the
// length of its host (1) and the host; numbers little-endian.
struct TcpAddress {
  uint64_t port = 0;
  uint32_t transport = 0;
  std::vector<Endpoint> endpoints;
};

void Append(std::string& bytes, uint64_t value, size_t width) {
  for (size_t i = 0; i < width; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t Remove(absl::string_view& bytes, size_t width) {
  uint64_t value = 0;
  for (size_t i = 0; i < width; ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  bytes.remove_prefix(width);
  return value;
}

std::string Encode(const TcpAddress& address) {
  std::string bytes;
  Append(bytes, address.port, 8);
  Append(bytes, address.transport, 4);
  for (const Endpoint& endpoint : address.endpoints) {
    CHECK_LE(endpoint.host.size(), Endpoint::kHostBytesMax);
    Append(bytes, endpoint.port, 2);
    Append(bytes, endpoint.host.size(), 1);
    bytes += endpoint.host;
  }
  return SealAddress(kAddressMark, bytes);
}

absl::StatusOr<TcpAddress> Decode(absl::string_view sealed) {
  ASSIGN_OR_RETURN(absl::string_view bytes, OpenAddress(kAddressMark, sealed, "TCP address"));
  const auto wrong = [&sealed] {
    return absl::InvalidArgumentError(
        absl::StrCat("these ", sealed.size(), " bytes are no TCP address"));
  };
  if (bytes.size() < 12) return wrong();
  TcpAddress address;
  address.port = Remove(bytes, 8);
  address.transport = static_cast<uint32_t>(Remove(bytes, 4));
  while (!bytes.empty()) {
    if (bytes.size() < 3 || address.endpoints.size() == kEndpointsMax) return wrong();
    Endpoint& endpoint = address.endpoints.emplace_back();
    endpoint.port = static_cast<uint16_t>(Remove(bytes, 2));
    const size_t size = Remove(bytes, 1);
    if (bytes.size() < size || size == 0) return wrong();
    endpoint.host = std::string(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  if (address.endpoints.empty()) return wrong();
  return address;
}

// Of what several addresses of a peer said, what tells most: somebody who turned us away was there.
int Weight(const absl::Status& status) {
  return absl::IsPermissionDenied(status) ? 2 : absl::IsFailedPrecondition(status) ? 1 : 0;
}

bool IsRetry(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// Whether the other host has acknowledged all that was sent.
bool AllAcknowledged(int socket) {
  int bytes = 0;
  return ioctl(socket, SIOCOUTQ, &bytes) != 0 || bytes == 0;
}

}  // namespace

struct TcpTransport::Connection : public EventLoop::Handler, public FetchTurns::Payload {
  enum class State { kConnecting, kShaking, kEncrypting, kOpen, kLingering, kClosed };
  enum class Turn { kNone, kWaiting, kReading };

  void Ready(uint32_t events) override {
    if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) readable = true;
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) hung_up = true;
    if ((events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) writable = !write_failed;
    if (HasWork()) transport->Activate(*this);
  }

  bool HasWork() const {
    switch (state) {
      case State::kConnecting:
        return writable || hung_up;
      case State::kShaking:
      case State::kLingering:
        return readable;
      case State::kEncrypting:
        return tls_wants_write ? writable : readable;
      case State::kOpen:
        return (readable && turn != Turn::kWaiting) || (writable && !writer->empty());
      case State::kClosed:
        return false;
    }
    return false;
  }

  bool open() const { return state == State::kOpen; }
  // Its link loses nothing with it.
  bool dispensable() const { return number > 0 && !carried; }

  // As readv(2) and writev(2), encrypted or not.
  ssize_t ReadInto(absl::Span<const iovec> room) const {
    return tls ? tls->Read(room) : readv(socket.get(), room.data(), static_cast<int>(room.size()));
  }
  ssize_t WriteFrom(absl::Span<iovec> pieces) const {
    if (tls) return tls->Write(pieces);
    msghdr message = {};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    return sendmsg(socket.get(), &message, MSG_NOSIGNAL);
  }

  TcpTransport* transport = nullptr;
  Peer* peer = nullptr;  // null while lingering and closed
  FileDescriptor socket;
  SocketAddress remote;
  uint32_t number = 0;  // in its link
  State state = State::kConnecting;
  Turn turn = Turn::kNone;
  bool active = false;
  bool readable = false;
  bool writable = false;
  bool hung_up = false;  // an end is in the stream: to be read up to it
  bool write_failed = false;
  bool ending = false;   // another of its link has ended
  bool carried = false;  // a byte, in either direction
  int64_t sent_in_turn = -1;
  Clock::time_point deadline;
  std::unique_ptr<HandshakeConnector> handshake;
  std::unique_ptr<TlsStream> tls;  // null: not encrypted
  bool tls_wants_write = false;
  bool checksums = false;
  std::optional<FrameReader> reader;
  std::optional<FrameWriter> writer;
};

struct TcpTransport::Peer {
  PeerId id;
  std::string name;  // for errors: who it is, where known
  LinkHello hello;   // its own or, where this side has connected, ours
  std::vector<Connection*> connections;
  absl::Status lost;  // OK while it is not
  std::vector<WireHeader> payloads_lost;
  bool incoming = false;  // it has connected
  bool joins = false;     // the receiver has not heard of it yet
  Clock::time_point open_more_from = Clock::time_point::max();
  uint32_t connections_made = 0;
  FrameWriter waiting{/*checksums=*/false};  // until the connection is open

  // The open connection with the least under way; null: none is open. Who was connected to speaks
  // on an additional one when he has heard something there: until then he does not know whether the
  // other end has it.
  Connection* LeastBusy() const {
    Connection* least = nullptr;
    for (Connection* connection : connections) {
      if (!connection->open()) continue;
      if (incoming && connection->number > 0 && !connection->carried) continue;
      if (least == nullptr || connection->writer->bytes() < least->writer->bytes()) {
        least = connection;
      }
    }
    return least;
  }

  SessionToken token;  // of the session, as it was proved or is to be

  // Where this side connects.
  std::deque<Endpoint> endpoints;       // to be tried yet
  std::deque<SocketAddress> addresses;  // before those
  absl::Status fault;                   // of those that were
  int repeats = 0;                      // of attempts that ended without a word
};

absl::StatusOr<std::unique_ptr<TcpTransport>> TcpTransport::Create(EventLoop* loop,
                                                                   TcpTransportOptions options) {
  CHECK(options.port != nullptr) << "a TcpTransport needs a DataPort";
  return absl::WrapUnique(new TcpTransport(loop, std::move(options)));
}

TcpTransport::TcpTransport(EventLoop* loop, TcpTransportOptions options)
    : Carrier(loop),
      options_(std::move(options)),
      door_(options_.port->MakeDoor([loop] { loop->Wake(); })),
      address_(Encode({.port = options_.port->id(),
                       .transport = door_->number(),
                       .endpoints = options_.port->endpoints()})),
      turns_(kTurns) {}

TcpTransport::~TcpTransport() {
  questions_.clear();  // the door takes its own away
  door_.reset();
  while (!peers_.empty()) Disconnect(peers_.begin()->first);
  const auto end = Clock::now() + kGoodbyeTime;
  while (true) {
    // What is left are those that linger; a closed one is no longer among them.
    for (size_t i = timed_.size(); i-- > 0;) Discard(*timed_[i]);
    if (timed_.empty() || Clock::now() >= end) break;
    std::vector<pollfd> polled;
    for (const Connection* connection : timed_) {
      polled.push_back({.fd = connection->socket.get(), .events = POLLIN, .revents = 0});
    }
    poll(polled.data(), polled.size(), /*milliseconds=*/1);
  }
  while (!connections_.empty()) Close(*connections_.back());
}

TcpTransport::Peer& TcpTransport::Find(PeerId id) const {
  const auto found = peers_.find(id);
  CHECK(found != peers_.end()) << "no peer " << static_cast<int>(id);
  return *found->second;
}

TcpTransport::Peer& TcpTransport::AddPeer() {
  const PeerId id{peers_made_++};
  auto& peer = peers_[id] = std::make_unique<Peer>();
  peer->id = id;
  return *peer;
}

void TcpTransport::OpenSession(uint64_t job, uint32_t generation, const SessionToken& token) {
  door_->OpenSession(job, generation, token);
}

void TcpTransport::CloseSession(uint64_t job, uint32_t generation) {
  door_->CloseSession(job, generation);
}

absl::StatusOr<PeerId> TcpTransport::Connect(absl::string_view address,
                                             const LinkCredentials& credentials) {
  ASSIGN_OR_RETURN(const TcpAddress to, Decode(address));
  Peer& peer = AddPeer();
  peer.name = ToString(to.endpoints.front());
  peer.hello.who = credentials.self;
  peer.hello.port = to.port;
  peer.hello.transport = to.transport;
  const std::string link = SessionToken::Random().ToBytes();
  static_assert(SessionToken::kBytes == sizeof(peer.hello.link));
  std::memcpy(peer.hello.link.data(), link.data(), link.size());
  peer.token = credentials.token;
  peer.endpoints.assign(to.endpoints.begin(), to.endpoints.end());
  const PeerId id = peer.id;
  Approach(peer);
  return id;
}

void TcpTransport::Approach(Peer& peer) {
  while (true) {
    if (!peer.addresses.empty()) {
      const SocketAddress address = peer.addresses.front();
      peer.addresses.pop_front();
      const absl::Status dialed = Dial(peer, address, /*number=*/0);
      if (dialed.ok()) return;
      Blame(peer, dialed);
      continue;
    }
    if (peer.endpoints.empty()) return EndLink(peer, peer.fault);
    const Endpoint endpoint = std::move(peer.endpoints.front());
    peer.endpoints.pop_front();
    if (const auto numeric = SocketAddress::Numeric(endpoint.host, endpoint.port)) {
      peer.addresses.push_back(*numeric);
    } else {
      return Resolve(peer, endpoint);
    }
  }
}

void TcpTransport::Resolve(Peer& peer, const Endpoint& endpoint) {
  const int64_t number = questions_asked_++;
  questions_.push_back({.number = number,
                        .peer = peer.id,
                        .host = endpoint.host,
                        .deadline = Clock::now() + options_.attempt_time_max});
  door_->Resolve(number, endpoint);
}

// One that comes too late was given up.
void TcpTransport::TakeResolved(DataPort::Resolved resolved) {
  const auto question = std::ranges::find(questions_, resolved.request, &Question::number);
  if (question == questions_.end()) return;
  Peer& peer = Find(question->peer);
  questions_.erase(question);
  if (resolved.addresses.ok()) {
    peer.addresses.assign(resolved.addresses->begin(), resolved.addresses->end());
  } else {
    Blame(peer, resolved.addresses.status());
  }
  Approach(peer);
}

// What several addresses of a peer said is told together, where none of it tells more.
void TcpTransport::Blame(Peer& peer, const absl::Status& fault) {
  if (peer.fault.ok() || Weight(fault) > Weight(peer.fault)) {
    peer.fault = fault;
  } else if (Weight(fault) == Weight(peer.fault)) {
    peer.fault =
        absl::Status(peer.fault.code(), absl::StrCat(peer.fault.message(), "; ", fault.message()));
  }
}

absl::Status TcpTransport::Dial(Peer& peer, const SocketAddress& address, uint32_t number) {
  const auto fault = [&address](int error) {
    return absl::UnavailableError(absl::StrCat(address.ToString(), ": ", std::strerror(error)));
  };
  FileDescriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return fault(errno);
  SizeReceiveBuffer(socket.get());
  TuneLinkSocket(socket.get());
  if (connect(socket.get(), address.data(), address.size()) != 0 && errno != EINPROGRESS) {
    return fault(errno);
  }
  auto connection = std::make_unique<Connection>();
  connection->transport = this;
  connection->peer = &peer;
  connection->socket = std::move(socket);
  connection->remote = address;
  connection->number = number;
  connection->deadline = Clock::now() + options_.attempt_time_max;
  RETURN_IF_ERROR(loop().Watch(connection->socket.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                               connection.get()));
  peer.connections.push_back(connection.get());
  timed_.push_back(connection.get());
  connections_.push_back(std::move(connection));
  return absl::OkStatus();
}

void TcpTransport::ShakeHands(Connection& connection) {
  using State = Connection::State;
  const int socket = connection.socket.get();
  if (connection.state == State::kConnecting) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return FailAttempt(connection, absl::UnavailableError(std::strerror(error)));
    LinkHello hello = connection.peer->hello;
    hello.connection = connection.number;
    hello.checksums = door_->port().WantsChecksums(socket);
    connection.handshake = std::make_unique<HandshakeConnector>(hello, connection.peer->token,
                                                                door_->port().options().security);
    connection.state = State::kShaking;
  }
  HandshakeConnector& handshake = *connection.handshake;
  const auto hung_up = [] {
    return absl::UnavailableError("the connection was closed during the handshake");
  };
  while (true) {
    const auto reply = handshake.TakeReply();
    // A fresh socket has room for the few bytes of a reply.
    if (!reply.empty() && send(socket, reply.data(), reply.size(), MSG_NOSIGNAL) !=
                              static_cast<ssize_t>(reply.size())) {
      return FailAttempt(connection, hung_up());
    }
    if (!handshake.fault().ok()) return FailAttempt(connection, handshake.fault());
    if (handshake.let_in()) {
      connection.checksums = handshake.checksums();
      return Encrypt(connection, TlsStream::Side::kConnector, handshake.TlsKey());
    }
    std::array<std::byte, SessionHandshake::kChallengeBytes> bytes;
    const ssize_t size = recv(socket, bytes.data(), handshake.wants(), 0);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && IsRetry(errno)) {
      connection.readable = false;
      return;
    }
    if (size <= 0) return FailAttempt(connection, hung_up());
    handshake.Take(absl::MakeConstSpan(bytes).first(size));
  }
}

// Opens it where the links are not encrypted.
void TcpTransport::Encrypt(Connection& connection, TlsStream::Side side,
                           const SessionToken::Proof& key) {
  if (door_->port().options().security != DataSecurity::kEncrypt) {
    return OpenConnection(connection);
  }
  connection.state = Connection::State::kEncrypting;
  connection.tls = std::make_unique<TlsStream>(side, key, connection.socket.get());
  connection.readable = connection.writable = true;  // to be found out
  ShakeTls(connection);
}

void TcpTransport::ShakeTls(Connection& connection) {
  switch (connection.tls->Shake()) {
    case TlsStream::Progress::kDone:
      return OpenConnection(connection);
    case TlsStream::Progress::kWantsRead:
      connection.tls_wants_write = connection.readable = false;
      return;
    case TlsStream::Progress::kWantsWrite:
      connection.tls_wants_write = true;
      connection.writable = false;
      return;
    case TlsStream::Progress::kFailed:
      return FailAttempt(connection, absl::UnavailableError(connection.tls->fault()));
  }
}

void TcpTransport::FailAttempt(Connection& connection, const absl::Status& why) {
  Peer& peer = *connection.peer;
  const absl::Status fault = Annotate(why, connection.remote.ToString());
  // A port that is crowded, or that was about to be taken over, hangs up without a word.
  const bool again = connection.state == Connection::State::kShaking && absl::IsUnavailable(why) &&
                     !peer.joins && connection.number == 0 && peer.repeats++ < kRepeatsMax;
  if (again) peer.addresses.push_front(connection.remote);
  Close(connection);
  if (again) return Approach(peer);
  if (connection.number > 0) return PauseOpening(peer);  // the link does without it
  if (peer.joins) {
    LOG(WARNING) << NameOf(peer.hello.who) << " cannot be let in: " << fault.message();
    return Forget(peer);
  }
  Blame(peer, fault);
  Approach(peer);
}

void TcpTransport::OpenConnection(Connection& connection) {
  Peer& peer = *connection.peer;
  // It has proved that before it came here, or began to encrypt.
  if (peer.joins && !door_->IsOpen(peer.hello.who.job, peer.hello.who.generation, peer.token)) {
    LOG(WARNING) << NameOf(peer.hello.who) << " at " << connection.remote.ToString()
                 << " cannot be let in: its session was closed meanwhile";
    return Forget(peer);
  }
  std::erase(timed_, &connection);
  connection.handshake = nullptr;
  connection.state = Connection::State::kOpen;
  connection.reader.emplace(connection.checksums);
  connection.writer.emplace(connection.checksums);
  connection.readable = connection.writable = true;  // to be found out
  if (connection.number == 0) {
    peer.name = connection.remote.ToString();
    peer.connections_made = 1;
    if (!peer.incoming) peer.open_more_from = Clock::time_point::min();
    peer.endpoints.clear();
    peer.addresses.clear();
  }
  while (OutgoingMessage* message = peer.waiting.TakeAny()) connection.writer->Push(message);
  Activate(connection);
  if (!std::exchange(peer.joins, false)) return;
  peer.name = absl::StrCat(NameOf(peer.hello.who), " at ", peer.name);
  // Copies: the receiver may disconnect the peer.
  const PeerId id = peer.id;
  const LinkIdentity who = peer.hello.who;
  receiver_->PeerJoined(id, who);
}

int TcpTransport::TakeDoorNews() {
  if (!door_->HasNews()) return 0;
  DataPort::Door::News news = door_->Take();
  for (DataPort::Member& member : news.members) TakeMember(std::move(member));
  for (DataPort::Resolved& resolved : news.resolved) TakeResolved(std::move(resolved));
  return static_cast<int>(news.members.size() + news.resolved.size());
}

void TcpTransport::TakeMember(DataPort::Member member) {
  auto connection = std::make_unique<Connection>();
  connection->transport = this;
  connection->socket = std::move(member.socket);
  connection->remote = SocketAddress::RemoteOf(connection->socket.get());
  connection->number = member.hello.connection;
  connection->checksums = member.checksums;
  connection->deadline = Clock::now() + options_.attempt_time_max;
  Peer* peer = PeerOf(member);
  const absl::Status watched =
      peer == nullptr ? absl::FailedPreconditionError("its connection is of no link")
                      : loop().Watch(connection->socket.get(),
                                     EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, connection.get());
  if (!watched.ok()) {
    LOG(WARNING) << NameOf(member.hello.who) << " at " << connection->remote.ToString()
                 << " cannot be let in: " << watched.message();
    if (peer != nullptr && peer->connections.empty()) Forget(*peer);
    return;
  }
  connection->peer = peer;
  peer->connections.push_back(connection.get());
  Connection& added = *connection;
  timed_.push_back(&added);
  connections_.push_back(std::move(connection));
  Encrypt(added, TlsStream::Side::kAcceptor, member.tls_key);
}

// The peer of whose link the connection is: a new one for the first. Null: there is none.
TcpTransport::Peer* TcpTransport::PeerOf(const DataPort::Member& member) {
  const LinkHello& hello = member.hello;
  const auto known = links_.find(hello.link);
  if (hello.connection > 0) {
    if (known == links_.end()) return nullptr;
    Peer& peer = Find(known->second);
    return peer.hello.who == hello.who && peer.lost.ok() ? &peer : nullptr;
  }
  if (known != links_.end()) return nullptr;
  Peer& peer = AddPeer();
  links_[hello.link] = peer.id;
  peer.hello = hello;
  peer.token = member.token;
  peer.incoming = peer.joins = true;
  return &peer;
}

// Of which nothing is heard any more.
void TcpTransport::Forget(Peer& peer) {
  while (!peer.connections.empty()) Close(*peer.connections.back());
  if (peer.incoming) links_.erase(peer.hello.link);
  const auto asked = std::ranges::find(questions_, peer.id, &Question::peer);
  if (asked != questions_.end()) {
    door_->CancelResolve(asked->number);
    questions_.erase(asked);
  }
  peers_.erase(peer.id);
}

LinkDescription TcpTransport::Describe(PeerId id) const {
  const Peer& peer = Find(id);
  const bool encrypted = door_->port().options().security == DataSecurity::kEncrypt;
  LinkDescription link{.transport = "tcp", .network = encrypted ? "tls" : "tcp"};
  link.connections = static_cast<int>(std::ranges::count_if(peer.connections, &Connection::open));
  if (const Connection* connection = peer.LeastBusy(); connection != nullptr) {
    link.device = InterfaceOf(SocketAddress::LocalOf(connection->socket.get()));
  }
  return link;
}

// The least busy one, and another one for later messages where all have enough to do. Null: none
// is open yet.
TcpTransport::Connection* TcpTransport::ConnectionFor(Peer& peer) {
  Connection* const least = peer.LeastBusy();
  if (least == nullptr || least->writer->bytes() < kBusyBytes ||
      std::ssize(peer.connections) >= options_.connections ||
      !std::ranges::all_of(peer.connections, &Connection::open) ||
      Clock::now() < peer.open_more_from) {
    return least;
  }
  if (!Dial(peer, least->remote, peer.connections_made++).ok()) PauseOpening(peer);
  return least;
}

void TcpTransport::PauseOpening(Peer& peer) {
  if (!peer.incoming) peer.open_more_from = Clock::now() + options_.attempt_time_max;
}

void TcpTransport::Send(PeerId id, const WireHeader& header, absl::Span<const std::byte> payload,
                        SendDone done) {
  CHECK_EQ(header.length, payload.size());
  Peer& peer = Find(id);
  if (!peer.lost.ok()) {
    const absl::Status lost = peer.lost;  // which `done` may disconnect
    if (done) done(lost);
    return;
  }
  OutgoingMessage* message = TakeOutgoing();
  message->header = EncodeHeader(header);
  message->payload = payload;
  message->done = std::move(done);
  message->status = absl::OkStatus();
  Connection* connection = ConnectionFor(peer);
  if (connection == nullptr) return peer.waiting.Push(message);
  const bool at_once = connection->writable && connection->writer->empty() &&
                       std::exchange(connection->sent_in_turn, turn_) != turn_;
  connection->writer->Push(message);
  if (!at_once) {
    if (connection->HasWork()) Activate(*connection);
    return;
  }
  Flush(*connection);
  if (finished_.empty() || finished_.back() != message) return;
  finished_.pop_back();
  SendDone finished = std::move(message->done);
  const absl::Status status = message->status;
  free_outgoing_.push_back(message);
  if (finished) finished(status);
}

absl::StatusOr<std::unique_ptr<Transport::MemoryRegistration>> TcpTransport::RegisterMemory(
    absl::Span<std::byte>) {
  return std::make_unique<MemoryRegistration>();
}

OutgoingMessage* TcpTransport::TakeOutgoing() {
  if (free_outgoing_.empty()) {
    outgoing_.push_back(std::make_unique<OutgoingMessage>());
    return outgoing_.back().get();
  }
  OutgoingMessage* message = free_outgoing_.back();
  free_outgoing_.pop_back();
  return message;
}

void TcpTransport::Finish(OutgoingMessage* message, const absl::Status& status) {
  message->status = status;
  finished_.push_back(message);
}

int TcpTransport::Advance() {
  CHECK(receiver_ != nullptr) << "SetReceiver comes before Progress";
  ++turn_;
  int events = TakeDoorNews();
  stepping_.swap(active_);
  for (Connection* connection : stepping_) connection->active = false;
  for (Connection* connection : stepping_) {
    events += Step(*connection);
    if (connection->HasWork()) Activate(*connection);
  }
  stepping_.clear();
  BeginFetches();
  LookAtClock();
  events += FinishSends();
  events += ReportLosses();
  Bury();
  return events;
}

bool TcpTransport::HasNews() const {
  return !active_.empty() || !finished_.empty() || !losses_.empty() || door_->HasNews();
}

absl::Duration TcpTransport::SleepMax() const {
  absl::Duration most =
      connections_.empty() ? absl::InfiniteDuration() : absl::FromChrono(kVanishedLook);
  const auto now = Clock::now();
  for (const Connection* connection : timed_) {
    most = std::min(most, connection->state == Connection::State::kLingering
                              ? kLingerLook
                              : absl::FromChrono(connection->deadline - now));
  }
  if (!questions_.empty()) {
    most = std::min(most, absl::FromChrono(questions_.front().deadline - now));
  }
  if (turns_.waiting()) most = std::min(most, absl::FromChrono(turns_.patience()));
  return most;
}

void TcpTransport::Activate(Connection& connection) {
  if (std::exchange(connection.active, true)) return;
  active_.push_back(&connection);
}

int TcpTransport::Step(Connection& connection) {
  switch (connection.state) {
    case Connection::State::kConnecting:
    case Connection::State::kShaking:
      ShakeHands(connection);
      return 1;
    case Connection::State::kEncrypting:
      ShakeTls(connection);
      return 1;
    case Connection::State::kOpen: {
      int events = 0;
      if (connection.readable && connection.turn != Connection::Turn::kWaiting) {
        events += Read(connection);
      }
      if (connection.open() && connection.writable && !connection.writer->empty()) {
        Flush(connection);
        ++events;
      }
      return events;
    }
    case Connection::State::kLingering:
      Discard(connection);
      return 0;
    case Connection::State::kClosed:
      return 0;
  }
  return 0;
}

// Reads what is there, but no more than kReadMax, and not while the connection waits for its turn.
int TcpTransport::Read(Connection& connection) {
  int events = Deliver(connection);
  size_t total = 0;
  while (connection.open() && connection.turn != Connection::Turn::kWaiting && total < kReadMax) {
    std::array<iovec, 2> room;
    const int pieces = connection.reader->Room(room);
    size_t asked = 0;
    for (int i = 0; i < pieces; ++i) asked += room[i].iov_len;
    const ssize_t size = connection.ReadInto(absl::MakeConstSpan(room).first(pieces));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && IsRetry(errno)) {
      connection.readable = false;
      break;
    }
    if (size <= 0) {
      EndStream(connection,
                absl::UnavailableError(size == 0 ? "the other end has closed the connection"
                                                 : std::strerror(errno)));
      break;
    }
    connection.reader->Took(size);
    connection.carried = true;
    total += size;
    ++events;
    // A short read has emptied the socket: what comes later announces itself. Not so an end of the
    // stream that was announced before, or that was found behind the last good record.
    const bool ended = connection.hung_up || (connection.tls && connection.tls->ended());
    if (static_cast<size_t>(size) < asked && !ended) connection.readable = false;
    events += Deliver(connection);
    if (!connection.readable) break;
  }
  return events;
}

// Hands out what has been read, until more is needed or a payload has to wait for its turn.
int TcpTransport::Deliver(Connection& connection) {
  int events = 0;
  while (connection.open() && connection.turn != Connection::Turn::kWaiting) {
    FrameReader& reader = *connection.reader;
    const PeerId from = connection.peer->id;
    switch (reader.Next()) {
      case FrameReader::Event::kMore:
        return events;
      case FrameReader::Event::kHeader: {
        const WireHeader& header = reader.header();
        const PayloadPlace place = receiver_->PlacePayload(from, header);
        if (!connection.open()) break;
        reader.Place(place.memory);
        if (reader.receiving() && header.length >= FrameReader::kLargeBytes &&
            reader.missing() > 0) {
          turns_.Wait(&connection, connection.peer->id, header.length);
          connection.turn = Connection::Turn::kWaiting;
          BeginFetches();
        }
        break;
      }
      case FrameReader::Event::kMessage:
        EndTurn(connection);
        ++events;
        receiver_->Received(from, reader.header(), reader.payload(), {});
        break;
      case FrameReader::Event::kBroken:
        ++malformed_;
        LOG(WARNING) << "the link with " << connection.peer->name
                     << " is closed: " << reader.fault().message();
        BreakLink(connection, reader.fault());
        break;
    }
  }
  return events;
}

void TcpTransport::Flush(Connection& connection) {
  FrameWriter& writer = *connection.writer;
  std::array<iovec, FrameWriter::kPiecesMax> pieces;
  while (!writer.empty()) {
    const int count = writer.Pieces(pieces);
    size_t asked = 0;
    for (int i = 0; i < count; ++i) asked += pieces[i].iov_len;
    const ssize_t size = connection.WriteFrom(absl::MakeSpan(pieces).first(count));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && IsRetry(errno)) {
      connection.writable = false;
      return;
    }
    if (size < 0) {
      // What the other end sent before may still be there to be read; the end of that ends the
      // link.
      const absl::Status why = Annotate(absl::UnavailableError(std::strerror(errno)),
                                        absl::StrCat("sending to ", connection.peer->name));
      connection.write_failed = connection.hung_up = connection.readable = true;
      connection.writable = false;
      if (!connection.dispensable()) {
        connection.peer->lost = why;
        FailSends(*connection.peer, why);
      }
      if (connection.HasWork()) Activate(connection);
      return;
    }
    connection.carried = true;
    writer.Wrote(size);
    while (OutgoingMessage* gone = writer.TakeGone()) finished_.push_back(gone);
    if (static_cast<size_t>(size) < asked) {
      connection.writable = false;  // the kernel says when there is room
      return;
    }
  }
}

void TcpTransport::BeginFetches() {
  while (turns_.waiting()) {
    auto* connection = static_cast<Connection*>(turns_.Begin(Clock::now()));
    if (connection == nullptr) return;
    connection->turn = Connection::Turn::kReading;
    if (connection->HasWork()) Activate(*connection);
  }
}

void TcpTransport::EndTurn(Connection& connection) {
  switch (std::exchange(connection.turn, Connection::Turn::kNone)) {
    case Connection::Turn::kNone:
      return;
    case Connection::Turn::kWaiting:
      return turns_.Leave(&connection);
    case Connection::Turn::kReading:
      return turns_.End(&connection);
  }
}

int TcpTransport::FinishSends() {
  finishing_.swap(finished_);
  for (OutgoingMessage* message : finishing_) {
    SendDone done = std::move(message->done);
    const absl::Status status = std::move(message->status);
    free_outgoing_.push_back(message);
    if (done) done(status);
  }
  const int finished = static_cast<int>(finishing_.size());
  finishing_.clear();
  return finished;
}

// The other end has not opened it, or let it in, as a part of the link.
void TcpTransport::DoWithout(Connection& connection, const absl::Status& why) {
  Peer& peer = *connection.peer;
  LOG(WARNING) << "the link with " << peer.name
               << " does without another connection: " << why.message();
  Close(connection);
  PauseOpening(peer);
  Connection* const other = peer.LeastBusy();
  FrameWriter& writer = other == nullptr ? peer.waiting : *other->writer;
  while (OutgoingMessage* message = connection.writer->TakeAny()) writer.Push(message);
  if (other != nullptr && other->HasWork()) Activate(*other);
}

// What the other end sent before over other connections of the link is still handed out, for a
// while: it closes them as well, or hears from this side.
void TcpTransport::EndStream(Connection& connection, const absl::Status& why) {
  Peer& peer = *connection.peer;
  if (connection.dispensable() && peer.lost.ok()) return DoWithout(connection, why);
  if (peer.lost.ok()) peer.lost = Annotate(why, absl::StrCat("the link with ", peer.name));
  if (peer.connections.size() == 1) return EndLink(peer, peer.lost);
  FailSends(peer, peer.lost);
  if (connection.reader->receiving()) peer.payloads_lost.push_back(connection.reader->header());
  Close(connection);
  for (Connection* other : std::vector<Connection*>(peer.connections)) {
    if (!other->open()) {
      Close(*other);
    } else if (!std::exchange(other->ending, true)) {
      shutdown(other->socket.get(), SHUT_WR);
      other->deadline = Clock::now() + kEndTime;
      timed_.push_back(other);
    }
  }
  if (peer.connections.empty()) EndLink(peer, peer.lost);
}

void TcpTransport::BreakLink(Connection& connection, const absl::Status& why) {
  Peer& peer = *connection.peer;
  EndLink(peer, Annotate(why, absl::StrCat("the link with ", peer.name)));
}

// PeerLost and what goes before it are called at the end of the turn.
void TcpTransport::EndLink(Peer& peer, const absl::Status& why) {
  peer.lost = why;
  FailSends(peer, why);
  while (!peer.connections.empty()) {
    Connection& connection = *peer.connections.back();
    if (connection.open() && connection.reader->receiving()) {
      peer.payloads_lost.push_back(connection.reader->header());
    }
    Close(connection);
  }
  if (peer.incoming) links_.erase(peer.hello.link);
  losses_.push_back({peer.id, std::move(peer.payloads_lost), peer.lost});
}

void TcpTransport::FailSends(Peer& peer, const absl::Status& why) {
  while (OutgoingMessage* message = peer.waiting.TakeAny()) Finish(message, why);
  for (Connection* connection : peer.connections) {
    if (!connection->open()) continue;
    while (OutgoingMessage* message = connection->writer->TakeAny()) Finish(message, why);
  }
}

void TcpTransport::Disconnect(PeerId id) {
  Peer& peer = Find(id);
  FailSends(peer, absl::CancelledError("disconnected"));
  for (Connection* connection : std::vector<Connection*>(peer.connections)) {
    if (connection->open()) Linger(*connection);
  }
  std::erase_if(losses_, [id](const Loss& loss) { return loss.peer == id; });
  Forget(peer);
}

// What was sent is acknowledged before the socket is closed: closing one with unread bytes makes
// the kernel throw away what has not gone out.
void TcpTransport::Linger(Connection& connection) {
  EndTurn(connection);
  shutdown(connection.socket.get(), SHUT_WR);
  std::erase(std::exchange(connection.peer, nullptr)->connections, &connection);
  connection.state = Connection::State::kLingering;
  connection.deadline = Clock::now() + kLingerTime;
  connection.readable = true;
  std::erase(timed_, &connection);
  timed_.push_back(&connection);
  Activate(connection);
}

// Reads and throws away; closes the socket at its end, or when all that was sent has arrived.
void TcpTransport::Discard(Connection& connection) {
  std::array<std::byte, 16 << 10> nowhere;
  for (int i = 0; i < 64; ++i) {
    if (AllAcknowledged(connection.socket.get())) return Close(connection);
    const ssize_t size = recv(connection.socket.get(), nowhere.data(), nowhere.size(), 0);
    if (size < 0 && IsRetry(errno)) {
      connection.readable = false;
      return;
    }
    if (size == 0 || (size < 0 && errno != EINTR)) return Close(connection);
  }
}

void TcpTransport::Close(Connection& connection) {
  EndTurn(connection);
  loop().Unwatch(connection.socket.get(), &connection);
  connection.socket = FileDescriptor();
  connection.state = Connection::State::kClosed;
  std::erase(timed_, &connection);
  if (connection.peer != nullptr) std::erase(connection.peer->connections, &connection);
  connection.peer = nullptr;
  const auto owner =
      std::ranges::find(connections_, &connection, &std::unique_ptr<Connection>::get);
  CHECK(owner != connections_.end());
  closed_.push_back(std::move(*owner));
  *owner = std::move(connections_.back());
  connections_.pop_back();
}

// Those that there are now: a receiver may connect again, in vain, at once.
int TcpTransport::ReportLosses() {
  int reported = 0;
  for (size_t left = losses_.size(); left > 0 && !losses_.empty(); --left) {
    const Loss loss = std::move(losses_.front());
    losses_.erase(losses_.begin());
    for (const WireHeader& header : loss.payloads) {
      if (peers_.contains(loss.peer)) receiver_->PayloadLost(loss.peer, header);
    }
    if (peers_.contains(loss.peer)) receiver_->PeerLost(loss.peer, loss.why);
    ++reported;
  }
  return reported;
}

void TcpTransport::LookAtClock() {
  const auto now = Clock::now();
  for (size_t i = 0; i < timed_.size();) {
    Connection& connection = *timed_[i];
    if (connection.state == Connection::State::kLingering) {
      if (now >= connection.deadline || AllAcknowledged(connection.socket.get())) {
        Close(connection);
      }
    } else if (now >= connection.deadline && connection.open()) {
      EndLink(*connection.peer, connection.peer->lost);
    } else if (now >= connection.deadline) {
      std::erase(timed_, &connection);
      FailAttempt(connection, absl::UnavailableError("no answer in time"));
    }
    if (i < timed_.size() && timed_[i] == &connection) ++i;
  }
  while (!questions_.empty() && now >= questions_.front().deadline) {
    const Question late = std::move(questions_.front());
    questions_.erase(questions_.begin());
    door_->CancelResolve(late.number);
    Peer& peer = Find(late.peer);
    Blame(peer, absl::UnavailableError(absl::StrCat(
                    "the name '", late.host, "' is not resolved in time (is the name service ",
                    "there? The other end's --advertise may be an address)")));
    Approach(peer);
  }
  if (now < look_for_vanished_) return;
  look_for_vanished_ = now + kVanishedLook;
  for (size_t i = 0; i < connections_.size();) {
    Connection& connection = *connections_[i];
    if (connection.open() && HasVanished(connection.socket.get())) {
      BreakLink(connection, absl::UnavailableError("its machine does not answer any more"));
    } else {
      ++i;
    }
  }
}

void TcpTransport::Bury() {
  if (closed_.empty()) return;
  std::erase_if(active_, [](const Connection* connection) {
    return connection->state == Connection::State::kClosed;
  });
  closed_.clear();
}

}  // namespace muster
