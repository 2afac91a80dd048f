#include "services/coordinator/front_door.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/transport/file_descriptor.h"

namespace muster {
namespace {

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr int kPatienceMs = 20'000;

std::string Frame(int type, int flags, int stream, const std::string& payload) {
  std::string frame = {0, 0, static_cast<char>(payload.size()), static_cast<char>(type),
                       static_cast<char>(flags)};
  for (int shift = 24; shift >= 0; shift -= 8) frame.push_back(static_cast<char>(stream >> shift));
  return frame + payload;
}
std::string Begin(int stream) { return Frame(1, 4, stream, "headers"); }
std::string Trailers(int stream) { return Frame(1, 5, stream, "status"); }

void Send(const FileDescriptor& socket, const std::string& bytes) {
  ASSERT_EQ(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}
// So many bytes, or fewer where the other end hangs up before.
std::string Receive(const FileDescriptor& socket, size_t bytes) {
  std::string received(bytes, 0);
  size_t have = 0;
  pollfd readable = {.fd = socket.get(), .events = POLLIN};
  while (have < bytes && poll(&readable, 1, kPatienceMs) == 1) {
    const ssize_t more = recv(socket.get(), &received[have], bytes - have, 0);
    if (more <= 0) break;
    have += static_cast<size_t>(more);
  }
  return received.substr(0, have);
}
bool HangsUp(const FileDescriptor& socket) {
  pollfd readable = {.fd = socket.get(), .events = POLLIN};
  char byte;
  return poll(&readable, 1, kPatienceMs) == 1 && recv(socket.get(), &byte, 1, 0) <= 0;
}

class FrontDoorTest : public ::testing::Test {
 protected:
  void Open(FrontDoor::Options options = {}) {
    auto door = FrontDoor::Listen("127.0.0.1:0", options);
    ASSERT_TRUE(door.ok()) << door.status();
    door_ = *std::move(door);
    door_->Open([this](int socket) {
      absl::MutexLock lock(&mu_);
      served_.emplace_back(socket);
    });
  }
  FileDescriptor Connect() {
    FileDescriptor client(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(door_->port()))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    return client;
  }
  // The server's end of the next connection.
  FileDescriptor Served() {
    absl::MutexLock lock(&mu_);
    auto any = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !served_.empty(); };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&any), absl::Milliseconds(kPatienceMs)));
    if (served_.empty()) return {};
    FileDescriptor first = std::move(served_.front());
    served_.erase(served_.begin());
    return first;
  }

  absl::Mutex mu_;
  std::vector<FileDescriptor> served_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<FrontDoor> door_;
};

TEST_F(FrontDoorTest, PassesOnWhatBothSidesSay) {
  Open();
  const FileDescriptor client = Connect(), server = Served();
  std::string message;
  for (int i = 0; i < 1000; ++i) message += Frame(0, 0, 1, std::string(100, static_cast<char>(i)));

  Send(client, kPreface + Begin(1) + message);
  EXPECT_EQ(Receive(server, kPreface.size() + Begin(1).size() + message.size()),
            kPreface + Begin(1) + message);
  Send(server, message.substr(0, 50'000));
  EXPECT_EQ(Receive(client, 49'991), message.substr(0, 49'991)) << "all but a part of a header";
}

TEST_F(FrontDoorTest, ACallForWhichThereIsNoCreditWaitsUntilAnotherEnds) {
  Open({.credit = {.first = 1, .most = 1, .per_second = 0}});
  const FileDescriptor client = Connect(), server = Served();
  Send(client, kPreface + Begin(1) + Begin(3));
  EXPECT_EQ(Receive(server, kPreface.size() + Begin(1).size()), kPreface + Begin(1));

  Send(server, Trailers(1));

  EXPECT_EQ(Receive(server, Begin(3).size()), Begin(3));
  EXPECT_EQ(Receive(client, Trailers(1).size()), Trailers(1));
}

TEST_F(FrontDoorTest, WhoeverHangsUpIsHungUpOn) {
  Open();
  FileDescriptor client = Connect(), server = Served();
  client = FileDescriptor();
  EXPECT_TRUE(HangsUp(server));

  FileDescriptor other = Connect(), its_server = Served();
  Send(its_server, Trailers(1));
  its_server = FileDescriptor();
  EXPECT_EQ(Receive(other, Trailers(1).size()), Trailers(1)) << "what was said last";
  EXPECT_TRUE(HangsUp(other));
}

TEST_F(FrontDoorTest, WhoDoesNotSpeakHttp2IsHungUpOn) {
  Open({.greeting_max = absl::ZeroDuration()});
  const FileDescriptor silent = Connect();
  EXPECT_TRUE(HangsUp(silent));
  const FileDescriptor garbage = Connect();
  send(garbage.get(), "GET / HTTP/1.1\r\n", 16, MSG_NOSIGNAL);
  EXPECT_TRUE(HangsUp(garbage));
}

TEST_F(FrontDoorTest, WhoDoesNotReadIsNotHeard) {
  Open();
  const FileDescriptor client = Connect(), server = Served();
  Send(client, kPreface);
  EXPECT_EQ(Receive(server, kPreface.size()), kPreface);
  const std::string answer = Frame(0, 0, 1, std::string(100, 'a'));
  size_t sent = 0;
  // Until nothing has room for it for a while: the client's buffers and the door's own.
  for (pollfd writable = {.fd = server.get(), .events = POLLOUT}; poll(&writable, 1, 1000) == 1;) {
    const ssize_t some = send(server.get(), answer.data() + sent % answer.size(),
                              answer.size() - sent % answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (some > 0) sent += static_cast<size_t>(some);
  }

  Send(client, Begin(1));
  pollfd readable = {.fd = server.get(), .events = POLLIN};
  EXPECT_EQ(poll(&readable, 1, 200), 0);

  EXPECT_EQ(Receive(client, sent).size(), sent);
  EXPECT_EQ(Receive(server, Begin(1).size()), Begin(1));
}

TEST_F(FrontDoorTest, AFullDoorPutsOutWhoHasNoCallsAndElseRefuses) {
  Open({.connections_max = 2});
  const FileDescriptor idle = Connect(), idle_server = Served();
  const FileDescriptor busy = Connect(), busy_server = Served();
  Send(busy, kPreface + Begin(1));
  EXPECT_EQ(Receive(busy_server, kPreface.size() + Begin(1).size()), kPreface + Begin(1));

  const FileDescriptor newcomer = Connect(), newcomer_server = Served();
  EXPECT_TRUE(HangsUp(idle));
  Send(newcomer, kPreface + Begin(1));
  EXPECT_EQ(Receive(newcomer_server, kPreface.size() + Begin(1).size()), kPreface + Begin(1));
  const FileDescriptor refused = Connect();
  EXPECT_TRUE(HangsUp(refused));
}

TEST_F(FrontDoorTest, BeyondTheCallsOfAllAConnectionHasAFew) {
  Open({.calls_max = 1});
  const FileDescriptor first = Connect(), first_server = Served();
  Send(first, kPreface + Begin(1));
  EXPECT_EQ(Receive(first_server, kPreface.size() + Begin(1).size()), kPreface + Begin(1));

  const FileDescriptor second = Connect(), second_server = Served();
  std::string calls = kPreface;
  for (int i = 0; i < FrontDoor::kCallsAlways; ++i) calls += Begin(1 + 2 * i);
  Send(second, calls + Begin(99));
  EXPECT_EQ(Receive(second_server, calls.size()), calls);
  Send(second_server, Trailers(1));
  EXPECT_EQ(Receive(second_server, Begin(99).size()), Begin(99));
}

TEST_F(FrontDoorTest, ShortOfMemoryAConnectionBeginsAFewCallsAndWaits) {
  std::atomic<int64_t> resident = 2;
  Open({.resident_bytes_max = 1, .resident_bytes = [&] { return resident.load(); }});
  const FileDescriptor client = Connect(), server = Served();
  std::string few = kPreface;
  for (int i = 0; i < FrontDoor::kCallsAlways; ++i)
    few += Begin(1 + 2 * i) + Frame(3, 0, 1 + 2 * i, "code");
  Send(client, few + Begin(99));
  EXPECT_EQ(Receive(server, few.size()), few);
  resident = 0;
  EXPECT_EQ(Receive(server, Begin(99).size()), Begin(99));
}

TEST_F(FrontDoorTest, ShortOfMemoryItHangsUpOnWhoHasMostOfIt) {
  std::atomic<int64_t> resident = 0;
  Open({.resident_bytes_max = 1000,
        .resident_bytes = [&] { return resident.load(); },
        .spared_bytes = 100});
  const FileDescriptor large = Connect(), large_server = Served();
  const FileDescriptor small = Connect(), small_server = Served();
  const std::string message = Frame(0, 0, 1, std::string(100, 'm'));
  Send(large, kPreface + Begin(1) + message + message);
  Send(small, kPreface + Begin(1) + message);
  const size_t call = kPreface.size() + Begin(1).size() + message.size();
  EXPECT_EQ(Receive(large_server, call + message.size()).size(), call + message.size());
  EXPECT_EQ(Receive(small_server, call).size(), call);

  resident = 2000;

  EXPECT_TRUE(HangsUp(large));
  Send(small, message);
  EXPECT_EQ(Receive(small_server, message.size()), message);
}

TEST_F(FrontDoorTest, NobodyComesInWhenItStopsAcceptingAndWhoIsInStays) {
  Open();
  const FileDescriptor client = Connect(), server = Served();
  door_->StopAccepting();
  const FileDescriptor late = Connect();  // the kernel's queue takes it
  Send(client, kPreface);
  EXPECT_EQ(Receive(server, kPreface.size()), kPreface);
  door_.reset();
  EXPECT_TRUE(HangsUp(late));
  EXPECT_TRUE(HangsUp(client));
  absl::MutexLock lock(&mu_);
  EXPECT_TRUE(served_.empty());
}

TEST(FrontDoorListenTest, WhereNobodyCanListenIsSaid) {
  const auto door = FrontDoor::Listen("127.0.0.1:0", {});
  ASSERT_TRUE(door.ok());
  const auto taken = FrontDoor::Listen(absl::StrCat("127.0.0.1:", (*door)->port()), {});
  EXPECT_TRUE(absl::IsUnavailable(taken.status())) << taken.status();
  for (const char* wrong : {"127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", ":x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(FrontDoor::Listen(wrong, {}).status())) << wrong;
  }
  EXPECT_TRUE(FrontDoor::Listen("0.0.0.0:0", {}).ok());
  EXPECT_TRUE(FrontDoor::Listen("[::]:0", {}).ok());
  EXPECT_TRUE(FrontDoor::Listen("localhost:0", {}).ok());
}

}  // namespace
}  // namespace muster
