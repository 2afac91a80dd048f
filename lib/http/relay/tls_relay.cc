#include "lib/http/relay/tls_relay.h"

#include <arpa/inet.h>
#include <glog/logging.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/security/tls_connection.h"
#include "lib/status/status.h"
#include "lib/transport/tcp/tcp_socket.h"

namespace muster {
namespace {

// The limit of bytes from one side that the other has not taken yet.
constexpr size_t kHeldBytesMax = 64 << 10;
// A request with a longer header is passed to the target, which refuses it as too long.
constexpr size_t kHeaderBytesMax = 16 << 10;
constexpr int kBacklog = 64;
// The poll interval while there are connections, which have deadlines.
constexpr absl::Duration kLook = absl::Milliseconds(500);
// A connection that has sent no request is not closed for others within this time: an honest client
// needs two round trips and little else.
constexpr absl::Duration kUndisturbed = absl::Milliseconds(500);

bool IsForLater(ssize_t result) {
  return result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

absl::StatusOr<FileDescriptor> ListenAt(const SocketAddress& address) {
  FileDescriptor listener(
      socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  const int on = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(listener.get(), address.data(), address.size()) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address.ToString(), " (", std::strerror(errno),
                     "): is another process using the port, and is the host one of this machine? "
                     "Port 0 picks a free one"));
  }
  return listener;
}

// Connects to a loopback port, which succeeds or fails at once. Returns no descriptor on failure.
FileDescriptor Dial(int port) {
  FileDescriptor target(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const sockaddr_in address{.sin_family = AF_INET,
                            .sin_port = htons(static_cast<uint16_t>(port)),
                            .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  if (connect(target.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 &&
      errno != EINPROGRESS) {
    return FileDescriptor();
  }
  return target;
}

}  // namespace

// A client and, after it has sent a request, its connection to the target. Used only by the relay's
// thread.
class TlsRelay::Connection {
 public:
  Connection(std::shared_ptr<SSL_CTX> context, FileDescriptor client, std::string source,
             absl::Duration now)
      : client_(std::move(client)),
        source_(std::move(source)),
        tls_(std::make_unique<TlsConnection>(std::move(context), client_.get())),
        begun_(now),
        moved_(now) {}

  const std::string& source() const { return source_; }

  // The events that it waits for now.
  std::array<pollfd, 2> Wanted() const {
    short client = 0, target = 0;  // NOLINT(google-runtime-int): as poll has it
    if (!handshake_done_) {
      client = progress_ == TlsConnection::Progress::kWantsWrite ? POLLOUT : POLLIN;
    } else {
      if (!client_ended_ && to_target_.size() < kHeldBytesMax) client |= POLLIN;
      if (!to_client_.empty()) client |= POLLOUT;
      if (target_ && !target_ended_ && to_client_.size() < kHeldBytesMax) target |= POLLIN;
      if (target_ && !to_target_.empty()) target |= POLLOUT;
    }
    return {pollfd{.fd = client_.get(), .events = client},
            pollfd{.fd = target == 0 ? -1 : target_.get(), .events = target}};
  }

  // Whether the connection may be closed for another one: it has had kUndisturbed and has sent no
  // request.
  bool MayBeHungUpOn(absl::Duration now) const { return !target_ && now - begun_ >= kUndisturbed; }

  // Returns false when the connection is over.
  bool Move(absl::Duration now, const Options& options) {
    const size_t held = to_target_.size() + to_client_.size();
    moved_something_ = false;
    const bool goes_on = handshake_done_ ? MoveBytes(options.target_port) : Handshake();
    if (moved_something_ || held != to_target_.size() + to_client_.size()) moved_ = now;
    if (!goes_on || target_) return goes_on && now - moved_ < options.silence_max;
    return now - begun_ < (handshake_done_ ? options.request_max : options.handshake_max);
  }

 private:
  bool Handshake() {
    progress_ = tls_->Handshake();
    handshake_done_ = progress_ == TlsConnection::Progress::kDone;
    return progress_ != TlsConnection::Progress::kFailed;
  }

  bool has_asked() const {
    return to_target_.size() >= kHeaderBytesMax || absl::StrContains(to_target_, "\r\n\r\n");
  }

  bool MoveBytes(int target_port) {
    std::array<char, TlsConnection::kRecordBytes> bytes;
    if (!client_ended_ && to_target_.size() < kHeldBytesMax) {
      const ssize_t got = tls_->Read(bytes.data(), bytes.size());
      if (got < 0 && !IsForLater(got)) return false;
      if (got > 0) to_target_.append(bytes.data(), got);
      if (got > 0) moved_something_ = true;
      if (got == 0) client_ended_ = true;
    }
    if (!target_) {
      if (!has_asked()) return !client_ended_;
      target_ = Dial(target_port);
      if (!target_) return false;
    }
    if (!to_target_.empty()) {
      const ssize_t sent = send(target_.get(), to_target_.data(), to_target_.size(), MSG_NOSIGNAL);
      if (sent > 0) to_target_.erase(0, sent);
      if (sent < 0 && !IsForLater(sent)) {  // the target has answered, and does not want the rest
        to_target_.clear();
        client_ended_ = true;
      }
    }
    // A client may close its direction and wait for the answer.
    if (client_ended_ && to_target_.empty() && !std::exchange(target_told_, true)) {
      shutdown(target_.get(), SHUT_WR);
    }
    if (!target_ended_ && to_client_.size() < kHeldBytesMax) {
      const ssize_t got = recv(target_.get(), bytes.data(), bytes.size(), 0);
      if (got < 0 && !IsForLater(got)) target_ended_ = true;
      if (got > 0) to_client_.append(bytes.data(), got);
      if (got > 0) moved_something_ = true;
      if (got == 0) target_ended_ = true;
    }
    if (!to_client_.empty()) {
      const ssize_t sent = tls_->Write(to_client_.data(), to_client_.size());
      if (sent < 0 && !IsForLater(sent)) return false;
      if (sent > 0) to_client_.erase(0, sent);
    }
    return !target_ended_ || !to_client_.empty();
  }

  const FileDescriptor client_;
  const std::string source_;  // the client's address or its network
  FileDescriptor target_;     // none until the client has sent a request
  const std::unique_ptr<TlsConnection> tls_;
  TlsConnection::Progress progress_ = TlsConnection::Progress::kWantsRead;
  bool handshake_done_ = false;
  bool client_ended_ = false, target_ended_ = false;
  bool target_told_ = false;  // the target knows that nothing more arrives
  bool moved_something_ = false;
  std::string to_target_, to_client_;
  const absl::Duration begun_;  // of SteadyNow()
  absl::Duration moved_;        // when it last moved bytes
};

absl::StatusOr<std::unique_ptr<TlsRelay>> TlsRelay::Listen(Options options) {
  const size_t colon = options.address.rfind(':');
  int port = -1;
  if (colon == std::string::npos || !absl::SimpleAtoi(options.address.substr(colon + 1), &port) ||
      port < 0 || port > std::numeric_limits<uint16_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("'", options.address, "' is no host:port"));
  }
  absl::string_view host = absl::string_view(options.address).substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  ASSIGN_OR_RETURN(const auto addresses,
                   SocketAddress::Resolve(host.empty() ? "0.0.0.0" : std::string(host),
                                          static_cast<uint16_t>(port)));
  absl::StatusOr<FileDescriptor> listener = absl::UnavailableError("the host has no address");
  for (size_t i = 0; i < addresses.size() && !listener.ok(); ++i) listener = ListenAt(addresses[i]);
  RETURN_IF_ERROR(listener.status());
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC));
  if (!wake) return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", std::strerror(errno)));
  const int bound = SocketAddress::LocalOf(listener->get()).port();
  return std::unique_ptr<TlsRelay>(
      new TlsRelay(std::move(options), *std::move(listener), std::move(wake), bound));
}

TlsRelay::TlsRelay(Options options, FileDescriptor listener, FileDescriptor wake, int port)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      wake_(std::move(wake)),
      port_(port),
      thread_([this] { Run(); }) {}

TlsRelay::~TlsRelay() {
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

// Returns the oldest connection that may be closed, of this source or of all; end() if there is
// none.
std::list<TlsRelay::Connection>::iterator TlsRelay::NextToGo(absl::Duration now,
                                                             const std::string& source) {
  return std::ranges::find_if(connections_, [&](const Connection& connection) {
    return connection.MayBeHungUpOn(now) && (source.empty() || connection.source() == source);
  });
}

void TlsRelay::Run() {
  sigset_t broken_pipe;  // OpenSSL writes to sockets as to files
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  while (true) {
    const bool accepts = !starved_ && (!is_full() || NextToGo(SteadyNow()) != connections_.end());
    std::vector<pollfd> looked_at = {{.fd = wake_.get(), .events = POLLIN},
                                     {.fd = accepts ? listener_.get() : -1, .events = POLLIN}};
    for (const Connection& connection : connections_) {
      for (const pollfd& wanted : connection.Wanted()) looked_at.push_back(wanted);
    }
    const bool waits = connections_.empty() && !starved_;
    const int timeout = waits ? -1 : static_cast<int>(absl::ToInt64Milliseconds(kLook));
    if (poll(looked_at.data(), looked_at.size(), timeout) < 0 && errno != EINTR) {
      PLOG(FATAL) << "poll";
    }
    if (looked_at[0].revents != 0) break;
    const absl::Duration now = SteadyNow();
    // poll() keeps reporting a client that is gone, whatever events are requested. So the
    // connection is closed.
    size_t i = 2;
    std::erase_if(connections_, [&](Connection& connection) {
      const bool gone = (looked_at[i].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0;
      i += 2;
      return gone || !connection.Move(now, options_);
    });
    starved_ = false;
    if (looked_at[1].revents != 0) Accept();
  }
  connections_.clear();
}

void TlsRelay::Accept() {
  const absl::Duration now = SteadyNow();
  auto goes = NextToGo(now);
  if (is_full() && goes == connections_.end()) return;  // the client has sent a request meanwhile
  FileDescriptor client(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!client) {
    starved_ = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    return;
  }
  std::string source = SocketAddress::RemoteOf(client.get()).source();
  const auto of_source = std::ranges::count(connections_, source, &Connection::source);
  if (of_source >= options_.of_address_max) {
    goes = NextToGo(now, source);
    if (goes == connections_.end()) {
      LOG_EVERY_T(WARNING, 60) << "HTTPS refuses connections from " << source << ": it has "
                               << of_source
                               << " that are in use (all clients of a tunnel or proxy have one "
                                  "address)";
      return;
    }
    connections_.erase(goes);
  } else if (is_full()) {
    connections_.erase(goes);
  }
  connections_.emplace_back(options_.tls->Context(), std::move(client), std::move(source), now);
}

}  // namespace muster
