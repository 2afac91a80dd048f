#include "lib/transport/testing/faulty_relay.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <string>

#include "lib/transport/core/file_descriptor.h"
#include "lib/transport/tcp/tcp_socket.h"

namespace muster::faulty_relay_test {
namespace {

using Direction = RelayFault::Direction;
using Kind = RelayFault::Kind;

FileDescriptor Listen() {
  FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto anywhere = SocketAddress::Numeric("127.0.0.1", 0);
  EXPECT_EQ(bind(listener.get(), anywhere->data(), anywhere->size()), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  return listener;
}

// Two ends, connected through a relay.
class Conversation {
 public:
  explicit Conversation(const RelayFault& fault)
      : listener_(Listen()),
        relay_(SocketAddress::LocalOf(listener_.get()).port(), fault),
        client_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto address = SocketAddress::Numeric("127.0.0.1", relay_.port());
    EXPECT_EQ(connect(client_.get(), address->data(), address->size()), 0);
    server_ = FileDescriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }

  // Sends `text` in this direction and then ends the stream. Returns the received bytes, or "reset"
  // or "error" if the stream failed.
  std::string Pass(Direction direction, const std::string& text) {
    const bool there = direction == Direction::kThere;
    const int from = (there ? client_ : server_).get(), to = (there ? server_ : client_).get();
    EXPECT_EQ(send(from, text.data(), text.size(), MSG_NOSIGNAL), text.size());
    shutdown(from, SHUT_WR);
    std::string heard(text.size() + 1, '\0');
    const ssize_t size = recv(to, heard.data(), heard.size(), MSG_WAITALL);
    if (size < 0) return errno == ECONNRESET ? "reset" : "error";
    heard.resize(size);
    return heard;
  }
  const FaultyRelay& relay() const { return relay_; }

 private:
  const FileDescriptor listener_;
  FaultyRelay relay_;
  const FileDescriptor client_;
  FileDescriptor server_;
};

TEST(FaultyRelayTest, BothDirectionsPassUnchangedWithoutAFault) {
  Conversation conversation({});
  EXPECT_EQ(conversation.Pass(Direction::kThere, "abc"), "abc");
  EXPECT_EQ(conversation.Pass(Direction::kBack, "defg"), "defg");
  EXPECT_FALSE(conversation.relay().happened());
  EXPECT_EQ(conversation.relay().bytes(Direction::kThere), 3);
  EXPECT_EQ(conversation.relay().bytes(Direction::kBack), 4);
}

TEST(FaultyRelayTest, OnlyOneBitFlips) {
  Conversation conversation(
      {.kind = Kind::kFlip, .direction = Direction::kBack, .place = 2, .bit = 1});
  EXPECT_EQ(conversation.Pass(Direction::kThere, "abcd"), "abcd");
  EXPECT_FALSE(conversation.relay().happened());
  EXPECT_EQ(conversation.Pass(Direction::kBack, "abcd"), "abad");
  EXPECT_TRUE(conversation.relay().happened());
}

TEST(FaultyRelayTest, BytesBehindACutDoNotArrive) {
  Conversation conversation({.kind = Kind::kCut, .place = 2});
  EXPECT_EQ(conversation.Pass(Direction::kThere, "abcd"), "ab");
}

TEST(FaultyRelayTest, AResetArrivesAsAReset) {
  Conversation conversation({.kind = Kind::kReset, .place = 0});
  EXPECT_EQ(conversation.Pass(Direction::kThere, "abcd"), "reset");
}

TEST(FaultyRelayTest, DelayedBytesArriveLaterAndComplete) {
  constexpr auto kDelay = std::chrono::milliseconds(30);
  Conversation conversation({.kind = Kind::kDelay, .place = 3, .delay = kDelay});
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(conversation.Pass(Direction::kThere, "abcd"), "abcd");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, kDelay);
}

}  // namespace
}  // namespace muster::faulty_relay_test
