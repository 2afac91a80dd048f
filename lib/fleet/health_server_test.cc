#include "lib/fleet/health_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/health_check_service_interface.h"
#include "gtest/gtest.h"
#include "lib/fleet/channel.h"
#include "lib/limits/limits.h"
#include "lib/listener/hostile_client.h"
#include "lib/status/grpc_status.h"
#include "lib/transport/core/file_descriptor.h"
#include "proto/third_party/grpc/health/v1/health.grpc.pb.h"

namespace muster::health_server_test {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);

absl::StatusOr<HealthCheckResponse::ServingStatus> Check(const HealthServer& server,
                                                         const std::string& service) {
  auto stub = Health::NewStub(DialCoordinator(absl::StrCat("127.0.0.1:", server.port())));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  HealthCheckRequest request;
  request.set_service(service);
  HealthCheckResponse response;
  if (absl::Status called = FromGrpc(stub->Check(&context, request, &response)); !called.ok()) {
    return called;
  }
  return response.status();
}

std::unique_ptr<HealthServer> Listen(const std::string& address = "127.0.0.1:0") {
  auto server = HealthServer::Listen(address, "ps");
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

TEST(HealthServerTest, TheProcessLivesWhetherOrNotItIsReady) {
  const auto server = Listen();
  EXPECT_EQ(*Check(*server, ""), HealthCheckResponse::SERVING);
  EXPECT_EQ(*Check(*server, "ps"), HealthCheckResponse::NOT_SERVING);

  bool attached = false;
  server->ReadyWhile([&attached] { return attached; });
  EXPECT_EQ(*Check(*server, "ps"), HealthCheckResponse::NOT_SERVING);
  attached = true;
  EXPECT_EQ(*Check(*server, "ps"), HealthCheckResponse::SERVING);

  server->Leave();
  EXPECT_EQ(*Check(*server, "ps"), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(*Check(*server, ""), HealthCheckResponse::SERVING);
}

TEST(HealthServerTest, AnotherRoleIsNotServedHere) {
  const auto server = Listen();
  const auto answer = Check(*server, "worker");
  EXPECT_TRUE(absl::IsNotFound(answer.status())) << answer.status();
  EXPECT_THAT(answer.status().message(), HasSubstr("'ps'"));
}

// The coordinator enables gRPC's health service for its own server.
TEST(HealthServerTest, WorksWithGrpcsDefaultHealthServiceEnabled) {
  grpc::EnableDefaultHealthCheckService(true);
  const auto server = Listen();
  grpc::EnableDefaultHealthCheckService(false);
  EXPECT_EQ(*Check(*server, "ps"), HealthCheckResponse::NOT_SERVING);
}

FileDescriptor Connect(const HealthServer& server) {
  FileDescriptor client(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(server.port()))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return client;
}
// Reads until the server closes the connection. Returns false if it does not.
bool HangsUp(const FileDescriptor& client) {
  const timeval patience = {.tv_sec = absl::ToInt64Seconds(kPatience)};
  setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  char bytes[1024];
  ssize_t came;
  while ((came = recv(client.get(), bytes, sizeof(bytes), 0)) > 0) {
  }
  return came == 0 || errno == ECONNRESET;
}
int64_t Status(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::atoll(line.c_str() + field.size());
  }
  return -1;
}

TEST(HealthServerTest, ClosesConnectionsThatSendNothingOrMakeNoCall) {
  const auto server = HealthServer::Listen(
      "127.0.0.1:0", "ps", {.greeting_max = absl::Milliseconds(200), .idle_max = absl::Hours(1)});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE(HangsUp(Connect(**server)));

  const auto other = HealthServer::Listen(
      "127.0.0.1:0", "ps", {.greeting_max = absl::Hours(1), .idle_max = absl::Milliseconds(200)});
  ASSERT_TRUE(other.ok()) << other.status();
  const FileDescriptor idle = Connect(**other);
  const std::string greeting("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  send(idle.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
  EXPECT_TRUE(HangsUp(idle));
}

TEST(HealthServerTest, HundredsOfConnectionsTakeNoThreadsAndProbesAreAnswered) {
  const auto server = Listen();
  EXPECT_TRUE(Check(*server, "").ok());
  const int64_t before = Status("Threads:");
  std::vector<FileDescriptor> unauthenticated_peers;
  for (int i = 0; i < 400; ++i) unauthenticated_peers.push_back(Connect(*server));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(*Check(*server, ""), HealthCheckResponse::SERVING);
  EXPECT_LT(Status("Threads:"), before + 16);
}

#if defined(__SANITIZE_ADDRESS__)  // it keeps freed memory
constexpr int64_t kFloodKilobytesMax = 1 << 20;
#else
constexpr int64_t kFloodKilobytesMax = 32 << 10;
#endif

// Each of these floods alone took 50 MB per second before the server had a GrpcListener.
TEST(HealthServerTest, FloodsTakeLittleMemoryAndProbesAreAnswered) {
  const auto server = Listen();
  EXPECT_TRUE(Check(*server, "").ok());
  const int64_t before = Status("VmRSS:");
  std::vector<std::unique_ptr<HostileClient>> floods;
  for (const Attack attack : {Attack::kResetCalls, Attack::kDeafness, Attack::kPings,
                              Attack::kControlFrames, Attack::kHalfOpen, Attack::kGarbage}) {
    floods.push_back(std::make_unique<HostileClient>(
        HostileClient::Options{.address = absl::StrCat("127.0.0.1:", server->port()),
                               .attacks = {attack},
                               .held_connections = limits::kHealthConnectionsMax / 2,
                               // Source addresses take turns while connections exceed the limit.
                               // Another source address keeps the floods from using up the probes'
                               // turns.
                               .source = "127.0.0.2"}));
  }
  int64_t most = 0;
  // Ten probes per second, each on a connection of its own: far below the share of one address.
  absl::Time next_probe = absl::Now();
  for (const absl::Time end = next_probe + absl::Seconds(3); absl::Now() < end;) {
    most = std::max(most, Status("VmRSS:"));
    if (absl::Now() < next_probe) continue;
    next_probe = absl::Now() + absl::Milliseconds(100);
    const auto answer = Check(*server, "");
    EXPECT_TRUE(answer.ok()) << answer.status();
  }
  for (const auto& flood : floods) EXPECT_GT(flood->strokes(), 0);
  EXPECT_LT(most, before + kFloodKilobytesMax) << "includes the memory of the floods' clients";
}

TEST(HealthServerTest, NamesTheAddressItCannotListenOn) {
  EXPECT_EQ(Listen("")->port(), 0);
  for (const std::string address :
       {"9500", "localhost:", ":9500", "localhost:65536", "host:grpc"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(HealthServer::Listen(address, "ps").status())) << address;
  }
  const auto server = Listen();
  const std::string taken = absl::StrCat("127.0.0.1:", server->port());
  const absl::Status refused = HealthServer::Listen(taken, "ps").status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr(taken));
}

}  // namespace
}  // namespace muster::health_server_test
