#include "lib/transport/tcp/tcp_transport.h"

#include <glog/logging.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "lib/status/status.h"
#include "lib/transport/session/session_handshake.h"
#include "lib/transport/tcp/connect_attempts.h"
#include "lib/transport/tcp/frame_reader.h"
#include "lib/transport/tcp/tcp_address.h"

namespace muster {
namespace {

// The transport fetches one payload at a time, however small. Bytes that other peers send meanwhile
// already wait in the receive buffers of their sockets.
constexpr FetchTurns::Options kTurns = {.bytes_max = 0, .fetches_min = 1};

// If every connection of a link has this much to send, another one is opened.
constexpr size_t kBusyBytes = 1 << 20;

// The most to read from one connection before others get a turn.
constexpr size_t kReadMax = 2 << 20;
constexpr auto kLingerTime = std::chrono::seconds(5);
// The time for bytes in transit on other connections of a link, after one connection has ended.
constexpr auto kEndTime = std::chrono::seconds(2);
constexpr auto kGoodbyeTime = std::chrono::milliseconds(200);
constexpr auto kLingerLook = absl::Milliseconds(10);
constexpr std::chrono::milliseconds kLinkLook = std::chrono::seconds(2);

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

absl::StatusOr<std::unique_ptr<TcpTransport>> TcpTransport::Create(EventLoop* loop,
                                                                   TcpTransportOptions options) {
  CHECK(options.port != nullptr) << "a TcpTransport needs a DataPort";
  return absl::WrapUnique(new TcpTransport(loop, std::move(options)));
}

TcpTransport::TcpTransport(EventLoop* loop, TcpTransportOptions options)
    : TransportBackend(loop),
      options_(std::move(options)),
      listener_(options_.port->MakeListener([loop] { loop->Wake(); })),
      address_(EncodeTcpAddress({.port = options_.port->id(),
                                 .transport = listener_->number(),
                                 .endpoints = options_.port->endpoints()})),
      turns_(kTurns) {}

TcpTransport::~TcpTransport() {
  questions_.clear();  // the listener drops its requests itself
  // The listener must go before the links end: from here on no peer is accepted. The port's thread
  // may live longer than the loop, and no longer wakes it.
  listener_.reset();
  while (!peers_.empty()) Disconnect(peers_.begin()->first);
  const auto end = Clock::now() + kGoodbyeTime;
  while (true) {
    // Only lingering connections are left; a closed one is no longer in the list.
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
  listener_->OpenSession(job, generation, token);
}

void TcpTransport::CloseSession(uint64_t job, uint32_t generation) {
  listener_->CloseSession(job, generation);
}

absl::StatusOr<PeerId> TcpTransport::Connect(absl::string_view address,
                                             const LinkCredentials& credentials) {
  ASSIGN_OR_RETURN(const TcpAddress to, DecodeTcpAddress(address));
  Peer& peer = AddPeer();
  peer.name = ToString(to.endpoints.front());
  peer.hello.who = credentials.self;
  peer.hello.port = to.port;
  peer.hello.transport = to.transport;
  const std::string link = SessionToken::Random().ToBytes();
  static_assert(SessionToken::kBytes == sizeof(peer.hello.link));
  std::memcpy(peer.hello.link.data(), link.data(), link.size());
  peer.token = credentials.token;
  peer.attempts = ConnectAttempts(to.endpoints);
  const PeerId id = peer.id;
  ConnectNext(peer);
  return id;
}

void TcpTransport::ConnectNext(Peer& peer) {
  while (true) {
    const ConnectAttempts::Next next = peer.attempts.Take();
    if (const auto* name = absl::get_if<Endpoint>(&next)) return Resolve(peer, *name);
    if (const auto* fault = absl::get_if<absl::Status>(&next)) return EndLink(peer, *fault);
    const absl::Status dialed = Dial(peer, absl::get<SocketAddress>(next), /*number=*/0);
    if (dialed.ok()) return;
    peer.attempts.Failed(dialed);
  }
}

void TcpTransport::Resolve(Peer& peer, const Endpoint& endpoint) {
  const int64_t number = questions_asked_++;
  questions_.push_back({.number = number,
                        .peer = peer.id,
                        .host = endpoint.host,
                        .deadline = Clock::now() + options_.attempt_time_max});
  listener_->Resolve(number, endpoint);
}

// Takes the result of a name lookup. A late result, of a question that this side has dropped, is
// ignored.
void TcpTransport::TakeResolved(DataPort::Resolved resolved) {
  const auto question = std::ranges::find(questions_, resolved.request, &Question::number);
  if (question == questions_.end()) return;
  Peer& peer = Find(question->peer);
  questions_.erase(question);
  if (resolved.addresses.ok()) {
    peer.attempts.Resolved(*resolved.addresses);
  } else {
    peer.attempts.Failed(resolved.addresses.status());
  }
  ConnectNext(peer);
}

absl::Status TcpTransport::Dial(Peer& peer, const SocketAddress& address, uint32_t number) {
  LinkHello hello = peer.hello;
  hello.connection = number;
  ASSIGN_OR_RETURN(auto connection,
                   TcpConnection::Dial(address, hello, peer.token, listener_->port(), this));
  RETURN_IF_ERROR(Add(peer, std::move(connection)));
  return absl::OkStatus();
}

absl::Status TcpTransport::Add(Peer& peer, std::unique_ptr<Connection> connection) {
  RETURN_IF_ERROR(loop().Watch(connection->socket.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                               connection.get()));
  connection->link = &peer;
  connection->deadline = Clock::now() + options_.attempt_time_max;
  peer.connections.push_back(connection.get());
  timed_.push_back(connection.get());
  connections_.push_back(std::move(connection));
  return absl::OkStatus();
}

void TcpTransport::Handshake(Connection& connection) {
  const absl::StatusOr<bool> done = connection.Handshake();
  if (!done.ok()) return FailAttempt(connection, done.status());
  if (*done) OpenConnection(connection);
}

void TcpTransport::FailAttempt(Connection& connection, const absl::Status& why) {
  Peer& peer = *connection.link;
  const absl::Status fault = Annotate(why, connection.remote.ToString());
  // A crowded port hangs up without a message, and so does a process that is ending. A new attempt
  // may succeed.
  const bool again = connection.state == Connection::State::kShaking && absl::IsUnavailable(why) &&
                     !peer.joins && connection.number == 0 &&
                     peer.attempts.Repeat(connection.remote);
  Close(connection);
  if (again) return ConnectNext(peer);
  if (connection.number > 0) return PauseOpening(peer);  // the link continues without it
  if (peer.joins) {
    LOG(WARNING) << NameOf(peer.hello.who) << " cannot be let in: " << fault.message();
    return Forget(peer);
  }
  peer.attempts.Failed(fault);
  ConnectNext(peer);
}

void TcpTransport::OpenConnection(Connection& connection) {
  Peer& peer = *connection.link;
  // The session was open when the peer proved its identity, but it may have been closed since.
  if (peer.joins && !listener_->IsOpen(peer.hello.who.job, peer.hello.who.generation, peer.token)) {
    LOG(WARNING) << NameOf(peer.hello.who) << " at " << connection.remote.ToString()
                 << " cannot be let in: its session was closed meanwhile";
    return Forget(peer);
  }
  std::erase(timed_, &connection);
  connection.Open();
  if (connection.number == 0) {
    peer.name = connection.remote.ToString();
    peer.connections_made = 1;
    if (!peer.incoming) peer.open_more_from = Clock::time_point::min();
    peer.attempts.Stop();
  }
  while (OutgoingMessage* message = peer.waiting.TakeAny()) connection.writer->Push(message);
  Activate(connection);
  if (!std::exchange(peer.joins, false)) return;
  peer.name = absl::StrCat(NameOf(peer.hello.who), " at ", peer.name);
  // Copies, because the receiver may disconnect the peer.
  const PeerId id = peer.id;
  const LinkIdentity who = peer.hello.who;
  receiver_->PeerJoined(id, who);
}

int TcpTransport::TakeListenerNews() {
  if (!listener_->HasNews()) return 0;
  DataPort::Listener::News news = listener_->Take();
  for (DataPort::Member& member : news.members) TakeMember(std::move(member));
  for (DataPort::Resolved& resolved : news.resolved) TakeResolved(std::move(resolved));
  return static_cast<int>(news.members.size() + news.resolved.size());
}

void TcpTransport::TakeMember(DataPort::Member member) {
  const LinkIdentity who = member.hello.who;
  Peer* const peer = PeerOf(member);
  auto connection = TcpConnection::Accept(std::move(member), listener_->port(), this);
  Connection& added = *connection;
  const std::string remote = connection->remote.ToString();
  const absl::Status taken =
      peer == nullptr ? absl::FailedPreconditionError("its connection belongs to no open link")
                      : Add(*peer, std::move(connection));
  if (taken.ok()) return Handshake(added);
  LOG(WARNING) << NameOf(who) << " at " << remote << " cannot be let in: " << taken.message();
  if (peer != nullptr && peer->connections.empty()) Forget(*peer);
}

// Returns the peer of the connection's link; a new one for the first connection. Returns null if
// an additional connection names no present link of this member, or a first one names a link that
// is already here.
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

// Destroys a peer; no callback for it follows.
void TcpTransport::Forget(Peer& peer) {
  while (!peer.connections.empty()) Close(*peer.connections.back());
  if (peer.incoming) links_.erase(peer.hello.link);
  const auto asked = std::ranges::find(questions_, peer.id, &Question::peer);
  if (asked != questions_.end()) {
    listener_->CancelResolve(asked->number);
    questions_.erase(asked);
  }
  peers_.erase(peer.id);
}

LinkDescription TcpTransport::Describe(PeerId id) const {
  const Peer& peer = Find(id);
  const DataSecurity security = listener_->port().options().security;
  const bool encrypted = security == DataSecurity::kEncrypt;
  LinkDescription link{.transport = "tcp", .network = encrypted ? "tls" : "tcp"};
  link.security = std::string(NameOf(security));
  link.connections = static_cast<int>(std::ranges::count_if(peer.connections, &Connection::open));
  if (const Connection* connection = peer.LeastBusy(); connection != nullptr) {
    link.device = InterfaceOf(SocketAddress::LocalOf(connection->socket.get()));
  }
  return link;
}

// Returns the least busy connection; null if none is open. If all are busy, dials another one for
// later messages.
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
    const absl::Status lost = peer.lost;  // a copy, because `done` may disconnect the peer
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
  // The message was written at once, so this call reports it. The message is returned to the pool
  // first, because `done` may send.
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
  CHECK(receiver_ != nullptr) << "SetReceiver() must be called before Progress()";
  ++turn_;
  int events = TakeListenerNews();
  // The list is swapped out, because receivers may send, and connections activated by that wait for
  // the next turn. Receivers may also close any connection: it stays in the list, closed, until
  // Reap().
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
  Reap();
  return events;
}

bool TcpTransport::HasNews() const {
  return !active_.empty() || !finished_.empty() || !losses_.empty() || listener_->HasNews();
}

absl::Duration TcpTransport::SleepMax() const {
  absl::Duration most =
      connections_.empty() ? absl::InfiniteDuration() : absl::FromChrono(LinkLook());
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
    case Connection::State::kEncrypting:
      Handshake(connection);
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

// Reads the available bytes until it has read kReadMax or more. Reads nothing while the connection
// waits for its turn.
int TcpTransport::Read(Connection& connection) {
  // The reader may still hold bytes of an earlier read, if the connection had to wait for its turn.
  int events = Deliver(connection);
  size_t total = 0;
  while (connection.open() && connection.turn != Connection::Turn::kWaiting && total < kReadMax) {
    std::array<iovec, 2> room;
    const int pieces = connection.reader->Room(room);
    size_t asked = 0;
    for (int i = 0; i < pieces; ++i) asked += room[i].iov_len;
    const ssize_t size = connection.ReadInto(absl::MakeConstSpan(room).first(pieces));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && WouldBlock(errno)) {
      connection.readable = false;
      break;
    }
    if (size <= 0) {
      if (connection.damaged()) TellDamage();
      EndStream(connection,
                absl::UnavailableError(size == 0 ? "the other end has closed the connection"
                                                 : std::strerror(errno)));
      break;
    }
    connection.reader->Took(size);
    connection.carried = true;
    total += size;
    ++events;
    // A short read has emptied the socket, and later bytes cause a new event. An end of the stream
    // causes none if it was announced before, or was found behind the last good record.
    if (static_cast<size_t>(size) < asked && !connection.end_is_near()) {
      connection.readable = false;
    }
    events += Deliver(connection);
    if (!connection.readable) break;
  }
  return events;
}

// Delivers the read messages until more bytes are needed or a payload must wait for its turn.
int TcpTransport::Deliver(Connection& connection) {
  int events = 0;
  while (connection.open() && connection.turn != Connection::Turn::kWaiting) {
    FrameReader& reader = *connection.reader;
    const PeerId from = connection.link->id;
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
          turns_.Wait(&connection, connection.link->id, header.length);
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
        if (absl::IsDataLoss(reader.fault())) TellDamage();
        LOG(WARNING) << "the link with " << connection.link->name
                     << " is closed: " << reader.fault().message();
        BreakLink(connection, reader.fault());
        break;
    }
  }
  return events;
}

void TcpTransport::TellDamage() const {
  const auto& damaged_frame = listener_->port().options().damaged_frame;
  if (damaged_frame != nullptr) damaged_frame();
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
    if (size < 0 && WouldBlock(errno)) {
      // If only a part of the encrypted records was sent, Write() reports none of them, but the
      // messages in that part may arrive.
      connection.carried |= connection.encrypted();
      connection.writable = false;
      return;
    }
    if (size < 0) {
      // The bytes that the other end sent before may still be readable. Their end ends the link.
      const absl::Status why = Annotate(absl::UnavailableError(std::strerror(errno)),
                                        absl::StrCat("sending to ", connection.link->name));
      connection.write_failed = connection.hung_up = connection.readable = true;
      connection.writable = false;
      if (!connection.dispensable()) {
        connection.link->lost = why;
        FailSends(*connection.link, why);
      }
      if (connection.HasWork()) Activate(connection);
      return;
    }
    connection.carried = true;
    writer.Wrote(size);
    while (OutgoingMessage* gone = writer.TakeGone()) finished_.push_back(gone);
    if (static_cast<size_t>(size) < asked) {
      connection.writable = false;  // the kernel reports when there is room again
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
  // `done` may send; messages that finish by that wait for the next turn.
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

// Closes an additional connection that carried nothing, and sends its messages over another one.
// The other end has not opened the connection, or has not accepted it as part of the link.
void TcpTransport::DoWithout(Connection& connection, const absl::Status& why) {
  Peer& peer = *connection.link;
  LOG(WARNING) << "the link with " << peer.name
               << " continues without an additional connection: " << why.message();
  Close(connection);
  PauseOpening(peer);
  Connection* const other = peer.LeastBusy();
  FrameWriter& writer = other == nullptr ? peer.waiting : *other->writer;
  while (OutgoingMessage* message = connection.writer->TakeAny()) writer.Push(message);
  if (other != nullptr && other->HasWork()) Activate(*other);
}

// Ends the link because one of its connections has ended, except if that connection is dispensable.
// Messages that the other end sent before over other connections are still delivered for a while:
// the other end closes those connections too, or this side ends them.
void TcpTransport::EndStream(Connection& connection, const absl::Status& why) {
  Peer& peer = *connection.link;
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
  Peer& peer = *connection.link;
  EndLink(peer, Annotate(why, absl::StrCat("the link with ", peer.name)));
}

// Fails the sends, closes all connections and records the loss. PeerLost and the callbacks before
// it are called at the end of the turn.
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
  // No callback for the peer may follow a Disconnect().
  std::erase_if(losses_, [id](const Loss& loss) { return loss.peer == id; });
  Forget(peer);
}

// Ends sending, but keeps the socket until all sent bytes are acknowledged, the other end has
// closed, or kLingerTime is over. Closing a socket with unread bytes makes the kernel drop unsent
// ones.
void TcpTransport::Linger(Connection& connection) {
  EndTurn(connection);
  shutdown(connection.socket.get(), SHUT_WR);
  std::erase(std::exchange(connection.link, nullptr)->connections, &connection);
  connection.state = Connection::State::kLingering;
  connection.deadline = Clock::now() + kLingerTime;
  connection.readable = true;
  std::erase(timed_, &connection);
  timed_.push_back(&connection);
  Activate(connection);
}

// Closes the socket at the end of its stream, or when all sent bytes have arrived.
void TcpTransport::Discard(Connection& connection) {
  if (connection.Drain()) Close(connection);
}

void TcpTransport::Close(Connection& connection) {
  EndTurn(connection);
  loop().Unwatch(connection.socket.get(), &connection);
  connection.socket = FileDescriptor();
  connection.state = Connection::State::kClosed;
  std::erase(timed_, &connection);
  if (connection.link != nullptr) std::erase(connection.link->connections, &connection);
  connection.link = nullptr;
  const auto owner =
      std::ranges::find(connections_, &connection, &std::unique_ptr<Connection>::get);
  CHECK(owner != connections_.end());
  // The object lives until Reap(), because lists of this turn may still refer to it.
  closed_.push_back(std::move(*owner));
  *owner = std::move(connections_.back());
  connections_.pop_back();
}

// Reports only the present losses: a receiver may connect again at once, and fail again.
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
      if (now >= connection.deadline || connection.AllAcknowledged()) {
        Close(connection);
      }
    } else if (now >= connection.deadline && connection.open()) {
      EndLink(*connection.link, connection.link->lost);
    } else if (now >= connection.deadline) {
      std::erase(timed_, &connection);
      FailAttempt(connection, absl::UnavailableError("no answer in time"));
    }
    // If the connection was removed from the list, another one is in its place now.
    if (i < timed_.size() && timed_[i] == &connection) ++i;
  }
  while (!questions_.empty() && now >= questions_.front().deadline) {
    const Question late = std::move(questions_.front());
    questions_.erase(questions_.begin());
    listener_->CancelResolve(late.number);
    Peer& peer = Find(late.peer);
    peer.attempts.Failed(absl::UnavailableError(absl::StrCat(
        "the name '", late.host, "' was not resolved in time (check the name service; ",
        "the other end can also set --advertise to an address)")));
    ConnectNext(peer);
  }
  if (now >= look_at_links_) LookAtLinks(now);
}

std::chrono::milliseconds TcpTransport::LinkLook() const {
  return std::min(kLinkLook, options_.record_time_max);
}

// Ends links whose machine no longer answers or whose encrypted record stays unfinished. The age of
// a record is counted in looks, because a process that was held up itself has not waited for the
// record.
void TcpTransport::LookAtLinks(Clock::time_point now) {
  look_at_links_ = now + LinkLook();
  for (size_t i = 0; i < connections_.size();) {
    Connection& connection = *connections_[i];
    absl::Status fault;
    if (connection.open() && HasVanished(connection.socket.get())) {
      fault = absl::UnavailableError("its machine no longer answers");
    } else if (connection.open() &&
               connection.LooksAtUnfinishedRecord() * LinkLook() >= options_.record_time_max) {
      fault = absl::UnavailableError(
          absl::StrCat("an encrypted record has been unfinished for ",
                       absl::FormatDuration(absl::FromChrono(options_.record_time_max)),
                       ": the other end hangs, or the record's length was changed in transit"));
    }
    if (fault.ok()) {
      ++i;
    } else {
      BreakLink(connection, fault);
    }
  }
}

// Destroys closed connections. Called at the end of a turn: only active_ can still refer to a
// closed connection then.
void TcpTransport::Reap() {
  if (closed_.empty()) return;
  std::erase_if(active_, [](const Connection* connection) {
    return connection->state == Connection::State::kClosed;
  });
  closed_.clear();
}

}  // namespace muster
