// Checks that the faults of faulty_network.cc reach the data port, even if the compiler replaces a
// call by another one. This program links the wrapped calls instead of preloading them.
#include "tests/chaos/faulty_network.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "lib/transport/core/file_descriptor.h"
#include "lib/transport/session/session_handshake.h"
#include "lib/transport/tcp/data_port.h"
#include "lib/transport/tcp/tcp_socket.h"

namespace muster::faulty_network_test {
namespace {

class FaultyNetworkTest : public ::testing::Test {
 protected:
  // Set up once for all tests, because the first call maps the file and keeps it mapped.
  static void SetUpTestSuite() {
    const std::string path = ::testing::TempDir() + "/faults";
    const FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    ASSERT_EQ(ftruncate(file.get(), sizeof(NetworkFaults)), 0);
    void* const memory =
        mmap(nullptr, sizeof(NetworkFaults), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    ASSERT_NE(memory, MAP_FAILED);
    faults = static_cast<NetworkFaults*>(memory);
    setenv(kNetworkFaultsVariable, path.c_str(), 1);
  }

  // Returns the reason why a data port rejects a peer with a valid hello.
  static std::string WhyAGoodHelloIsTurnedAway() {
    absl::Notification turned_away;
    std::string why;
    auto port = DataPort::Open({.bind_host = "127.0.0.1", .turned_away = [&](absl::string_view of) {
                                  why = std::string(of);
                                  turned_away.Notify();
                                }});
    EXPECT_TRUE(port.ok()) << port.status();
    const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto address = SocketAddress::Numeric("127.0.0.1", (*port)->port());
    EXPECT_EQ(connect(socket.get(), address->data(), address->size()), 0);
    HandshakeConnector connector({.port = (*port)->id()}, SessionToken(), DataSecurity::kAuth);
    const auto hello = connector.TakeReply();
    EXPECT_EQ(send(socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL), hello.size());
    EXPECT_TRUE(turned_away.WaitForNotificationWithTimeout(absl::Seconds(20)));
    return why;
  }

  static inline NetworkFaults* faults = nullptr;
};

TEST_F(FaultyNetworkTest, BitsThatFlipReachTheDataPortsHandshake) {
  faults->flips = std::numeric_limits<uint32_t>::max();
  const std::string why = WhyAGoodHelloIsTurnedAway();
  faults->flips = 0;
  EXPECT_TRUE(why == "not_muster" || why == "differs") << why;
  EXPECT_GT(faults->flipped, 0u);
}

TEST_F(FaultyNetworkTest, ResetsAndDelaysReachTheDataPortsHandshake) {
  faults->resets = faults->delays = 1'000'000;
  const std::string why = WhyAGoodHelloIsTurnedAway();
  faults->resets = faults->delays = 0;
  EXPECT_EQ(why, "hung_up");
  EXPECT_GT(faults->reset, 0u);
  EXPECT_GT(faults->delayed, 0u);
}

}  // namespace
}  // namespace muster::faulty_network_test
