// Shared memory is only for processes of one user. This test runs outside Bazel's sandbox, which
// has only one user.
#include <glog/logging.h>
#include <grp.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "gtest/gtest.h"
#include "lib/transport/core/event_loop.h"
#include "lib/transport/session/session.h"
#include "lib/transport/shm/control_socket.h"
#include "lib/transport/shm/local_address.h"
#include "lib/transport/shm/shared_memory_transport.h"
#include "lib/transport/testing/child_process.h"
#include "lib/transport/testing/postbox.h"

namespace muster::shared_memory_unauthenticated_peer_test {
namespace {

enum End { kTurnedAway = 0, kTakenForLocal = 1, kNoSocket = 2, kHeard = 3, kStaysRoot = 4 };

// The child process: tries to connect as another user.
int UnauthenticatedPeer() {
  std::string line;
  std::getline(std::cin, line);
  const auto address = LocalAddress::Decode(absl::HexStringToBytes(line));
  CHECK(address.ok()) << address.status();
  constexpr uid_t kNobody = 65534;
  if (setgroups(0, nullptr) != 0 || setuid(kNobody) != 0) return kStaysRoot;
  if (SharedMemoryTransport::IsLocal(absl::HexStringToBytes(line))) return kTakenForLocal;
  auto socket = ControlSocket::Connect(address->SocketName());
  if (!socket.ok()) return kNoSocket;
  auto heard = socket->Receive();
  while (heard.ok() && !heard->has_value()) {
    pollfd end{.fd = socket->fd(), .events = POLLIN, .revents = 0};
    poll(&end, 1, 1000);
    heard = socket->Receive();
  }
  return absl::IsUnavailable(heard.status()) ? kTurnedAway : kHeard;
}

TEST(SharedMemoryUnauthenticatedPeerTest, AnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Postbox postbox;
  const std::unique_ptr<EventLoop> loop = *EventLoop::Create();
  const std::unique_ptr<SharedMemoryTransport> transport =
      *SharedMemoryTransport::Create(loop.get());
  transport->SetReceiver(&postbox);
  OpenTestSession(*transport);
  ChildProcess unauthenticated_peer("--unauthenticated_peer");
  unauthenticated_peer.WriteLine(absl::BytesToHexString(transport->address()));
  std::atomic<bool> ended = false;
  int status = -1;
  std::jthread waiting([&] {
    status = unauthenticated_peer.Wait();
    ended = true;
    transport->Wake();
  });
  ASSERT_TRUE(ProgressUntil({transport.get()}, [&] { return ended.load(); }));
  waiting.join();
  EXPECT_EQ(status, kTurnedAway);
  EXPECT_EQ(transport->turned_away(), 1);
}

}  // namespace
}  // namespace muster::shared_memory_unauthenticated_peer_test

int main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  if (argc > 1 && std::string(argv[1]) == "--unauthenticated_peer")
    return muster::shared_memory_unauthenticated_peer_test::UnauthenticatedPeer();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
