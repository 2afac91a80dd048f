#include "lib/transport/tcp/tcp_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/transport/core/event_loop.h"
#include "lib/transport/core/file_descriptor.h"
#include "lib/transport/session/session.h"
#include "lib/transport/session/session_handshake.h"
#include "lib/transport/tcp/data_port.h"
#include "lib/transport/tcp/tcp_socket.h"

namespace muster::tcp_connection_test {
namespace {

// The two ends of one connection, and the port between them, on one thread.
class Meeting : public TcpConnection::Owner, public EventLoop::Sleeper {
 public:
  explicit Meeting(DataSecurity security)
      : port_(DataPort::Open({.bind_host = "127.0.0.1", .security = security}).value()),
        loop_(EventLoop::Create().value()),
        listener_(port_->MakeListener([this] { loop_->Wake(); })) {
    listener_->OpenSession(/*job=*/1, /*generation=*/1, token_);
  }
  ~Meeting() {
    for (const auto* connection : {&dialled, &accepted}) {
      if (*connection) loop_->Unwatch((*connection)->socket.get(), connection->get());
    }
  }

  const SessionToken& token() const { return token_; }
  SocketAddress address() const { return *SocketAddress::Numeric("127.0.0.1", port_->port()); }

  void Dial(const SocketAddress& address, const SessionToken& token) {
    const LinkHello hello = {
        .who = {.job = 1, .generation = 1, .role = LinkRole::kWorker, .index = 0},
        .port = port_->id(),
        .transport = listener_->number()};
    dialled = Watched(TcpConnection::Dial(address, hello, token, *port_, this).value());
  }

  // Runs until both ends are open, or one of them has failed.
  absl::Status Meet() {
    while (!dialled->open() || accepted == nullptr || !accepted->open()) {
      if (accepted == nullptr && listener_->HasNews()) {
        accepted = Watched(
            TcpConnection::Accept(std::move(listener_->Take().members.at(0)), *port_, this));
      }
      bool idle = true;
      for (auto* end : {dialled.get(), accepted.get()}) {
        if (end == nullptr || end->open() || !end->HasWork()) continue;
        idle = false;
        const absl::StatusOr<bool> done = end->Handshake();
        if (!done.ok()) return done.status();
        if (*done) end->Open();
      }
      if (idle) loop_->Wait(*this, absl::Seconds(10));
    }
    return absl::OkStatus();
  }

  // Waits until `end` has bytes to read.
  void AwaitReadable(const TcpConnection& end) {
    while (!end.readable) loop_->Wait(*this, absl::Seconds(10));
  }

  void Activate(TcpConnection&) override {}
  bool HasNews() const override { return accepted == nullptr && listener_->HasNews(); }

  std::unique_ptr<TcpConnection> dialled, accepted;

 private:
  std::unique_ptr<TcpConnection> Watched(std::unique_ptr<TcpConnection> connection) {
    const absl::Status watched = loop_->Watch(
        connection->socket.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, connection.get());
    EXPECT_TRUE(watched.ok()) << watched;
    return connection;
  }

  const SessionToken token_ = SessionToken::Random();
  const std::shared_ptr<DataPort> port_;
  const std::unique_ptr<EventLoop> loop_;
  const std::unique_ptr<DataPort::Listener> listener_;
};

class TcpConnectionTest : public testing::TestWithParam<DataSecurity> {};

TEST_P(TcpConnectionTest, BothEndsOpenAndCarryBytes) {
  Meeting meeting(GetParam());
  meeting.Dial(meeting.address(), meeting.token());
  ASSERT_EQ(meeting.Meet(), absl::OkStatus());

  std::string sent = "message";
  iovec piece = {.iov_base = sent.data(), .iov_len = sent.size()};
  ASSERT_EQ(meeting.dialled->WriteFrom(absl::MakeSpan(&piece, 1)), sent.size());
  std::string received(sent.size(), ' ');
  const iovec room = {.iov_base = received.data(), .iov_len = received.size()};
  ssize_t size = -1;
  while ((size = meeting.accepted->ReadInto(absl::MakeConstSpan(&room, 1))) < 0) {
    meeting.accepted->readable = false;
    meeting.AwaitReadable(*meeting.accepted);
  }
  EXPECT_EQ(size, sent.size());
  EXPECT_EQ(received, sent);
}

INSTANTIATE_TEST_SUITE_P(Securities, TcpConnectionTest,
                         testing::Values(DataSecurity::kNone, DataSecurity::kAuth,
                                         DataSecurity::kEncrypt),
                         [](const auto& test) { return std::string(NameOf(test.param)); });

TEST(TcpConnectionTest, AnotherTokenIsRefused) {
  Meeting meeting(DataSecurity::kAuth);
  meeting.Dial(meeting.address(), SessionToken::Random());
  EXPECT_TRUE(absl::IsPermissionDenied(meeting.Meet()));
}

TEST(TcpConnectionTest, AnAddressWithoutAListenerIsUnavailable) {
  Meeting meeting(DataSecurity::kAuth);
  // The socket is bound but does not listen, so that no other process gets the port meanwhile.
  const FileDescriptor taken(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress any = *SocketAddress::Numeric("127.0.0.1", 0);
  ASSERT_EQ(bind(taken.get(), any.data(), any.size()), 0);
  meeting.Dial(SocketAddress::LocalOf(taken.get()), meeting.token());
  EXPECT_TRUE(absl::IsUnavailable(meeting.Meet()));
}

TEST(TcpConnectionTest, TheEndOfAStreamIsKnownBeforeItIsRead) {
  Meeting meeting(DataSecurity::kAuth);
  meeting.Dial(meeting.address(), meeting.token());
  ASSERT_EQ(meeting.Meet(), absl::OkStatus());
  shutdown(meeting.dialled->socket.get(), SHUT_WR);
  meeting.accepted->readable = false;
  meeting.AwaitReadable(*meeting.accepted);
  EXPECT_TRUE(meeting.accepted->hung_up);
  EXPECT_TRUE(meeting.accepted->end_is_near());
}

}  // namespace
}  // namespace muster::tcp_connection_test
