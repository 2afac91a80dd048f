#include "lib/transport/tcp/tcp_connection.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {
namespace {

bool IsRetry(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

absl::Status HungUp() {
  return absl::UnavailableError("the connection was closed during the handshake");
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpConnection>> TcpConnection::Dial(const SocketAddress& address,
                                                                   const LinkHello& hello,
                                                                   const SessionToken& token,
                                                                   const DataPort& port,
                                                                   Owner* owner) {
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
  auto connection = std::make_unique<TcpConnection>();
  connection->owner = owner;
  connection->socket = std::move(socket);
  connection->remote = address;
  connection->number = hello.connection;
  connection->port_ = &port;
  connection->hello_ = hello;
  connection->token_ = token;
  return connection;
}

std::unique_ptr<TcpConnection> TcpConnection::Accept(DataPort::Member member, const DataPort& port,
                                                     Owner* owner) {
  auto connection = std::make_unique<TcpConnection>();
  connection->owner = owner;
  connection->socket = std::move(member.socket);
  connection->remote = SocketAddress::RemoteOf(connection->socket.get());
  connection->number = member.hello.connection;
  connection->port_ = &port;
  connection->checksums_ = member.checksums;
  connection->Encrypt(TlsStream::Side::kAcceptor, member.tls_key);
  return connection;
}

absl::StatusOr<bool> TcpConnection::Handshake() {
  if (state == State::kEncrypting) return HandshakeTls();
  ASSIGN_OR_RETURN(const bool let_in, HandshakeSession());
  return let_in ? HandshakeTls() : let_in;
}

absl::StatusOr<bool> TcpConnection::HandshakeSession() {
  if (state == State::kConnecting) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return absl::UnavailableError(std::strerror(error));
    hello_.checksums = port_->WantsChecksums(socket.get());
    handshake_ = std::make_unique<HandshakeConnector>(hello_, token_, port_->options().security);
    state = State::kShaking;
  }
  while (true) {
    const auto reply = handshake_->TakeReply();
    // A new socket has room for the few bytes of a reply, so a partial send means that the peer is
    // gone.
    if (!reply.empty() && send(socket.get(), reply.data(), reply.size(), MSG_NOSIGNAL) !=
                              static_cast<ssize_t>(reply.size())) {
      return HungUp();
    }
    RETURN_IF_ERROR(handshake_->fault());
    if (handshake_->let_in()) {
      checksums_ = handshake_->checksums();
      Encrypt(TlsStream::Side::kConnector, handshake_->TlsKey());
      return true;
    }
    std::array<std::byte, SessionHandshake::kChallengeBytes> bytes;
    const ssize_t size = recv(socket.get(), bytes.data(), handshake_->wants(), 0);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && IsRetry(errno)) {
      readable = false;
      return false;
    }
    if (size <= 0) return HungUp();
    handshake_->Take(absl::MakeConstSpan(bytes).first(size));
  }
}

void TcpConnection::Encrypt(TlsStream::Side side, const SessionToken::Proof& key) {
  state = State::kEncrypting;
  readable = writable = true;  // assume so, and let the first calls find out
  if (port_->options().security != DataSecurity::kEncrypt) return;
  tls_ = std::make_unique<TlsStream>(side, key, socket.get());
}

absl::StatusOr<bool> TcpConnection::HandshakeTls() {
  if (tls_ == nullptr) return true;
  switch (tls_->Handshake()) {
    case TlsStream::Progress::kDone:
      return true;
    case TlsStream::Progress::kWantsRead:
      tls_wants_write_ = readable = false;
      return false;
    case TlsStream::Progress::kWantsWrite:
      tls_wants_write_ = true;
      writable = false;
      return false;
    case TlsStream::Progress::kFailed:
      break;
  }
  return absl::UnavailableError(tls_->fault());
}

void TcpConnection::Open() {
  handshake_ = nullptr;
  state = State::kOpen;
  reader.emplace(checksums_);
  writer.emplace(checksums_);
  // Assume both, and let the first calls find out. The handshake has consumed the edges, and bytes
  // that are already there cause no new one.
  readable = writable = true;
}

void TcpConnection::Ready(uint32_t events) {
  if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) readable = true;
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) hung_up = true;
  // A socket with a failed write is only read from then on.
  if ((events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) writable = !write_failed;
  if (HasWork()) owner->Activate(*this);
}

bool TcpConnection::HasWork() const {
  switch (state) {
    case State::kConnecting:
      return writable || hung_up;
    case State::kShaking:
    case State::kLingering:
      return readable;
    case State::kEncrypting:
      return tls_wants_write_ ? writable : readable;
    case State::kOpen:
      return (readable && turn != Turn::kWaiting) || (writable && !writer->empty());
    case State::kClosed:
      return false;
  }
  return false;
}

ssize_t TcpConnection::ReadInto(absl::Span<const iovec> room) const {
  return tls_ ? tls_->Read(room) : readv(socket.get(), room.data(), static_cast<int>(room.size()));
}

ssize_t TcpConnection::WriteFrom(absl::Span<iovec> pieces) const {
  if (tls_) return tls_->Write(pieces);
  msghdr message = {};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  return sendmsg(socket.get(), &message, MSG_NOSIGNAL);
}

bool TcpConnection::Drain() {
  // One call reads at most 64 pieces, so that a peer that keeps sending cannot hold the thread.
  std::array<std::byte, 16 << 10> nowhere;
  for (int i = 0; i < 64; ++i) {
    if (AllAcknowledged()) return true;
    const ssize_t size = recv(socket.get(), nowhere.data(), nowhere.size(), 0);
    if (size < 0 && IsRetry(errno)) {
      readable = false;
      return false;
    }
    if (size == 0 || (size < 0 && errno != EINTR)) return true;
  }
  return false;
}

bool TcpConnection::AllAcknowledged() const {
  int bytes = 0;
  // SIOCOUTQ counts the bytes that are unsent or unacknowledged.
  return ioctl(socket.get(), SIOCOUTQ, &bytes) != 0 || bytes == 0;
}

int TcpConnection::LooksAtUnfinishedRecord() {
  const bool is_read = tls_ != nullptr && turn != Turn::kWaiting;
  const auto record = is_read ? tls_->UnfinishedRecord() : std::nullopt;
  const bool same = record.has_value() && record == unfinished_record_;
  looks_at_record_ = same ? looks_at_record_ + 1 : 0;
  unfinished_record_ = record;
  return looks_at_record_;
}

}  // namespace muster
