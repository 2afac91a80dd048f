#include "lib/fleet/health_server.h"

#include <memory>
#include <string>
#include <utility>

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
#include "lib/status/grpc_status.h"
#include "proto/third_party/grpc/health/v1/health.grpc.pb.h"

namespace muster {
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

// As the coordinator does, whose own services have it.
TEST(HealthServerTest, DoesNotMindTheHealthServiceThatGrpcBrings) {
  grpc::EnableDefaultHealthCheckService(true);
  const auto server = Listen();
  grpc::EnableDefaultHealthCheckService(false);
  EXPECT_EQ(*Check(*server, "ps"), HealthCheckResponse::NOT_SERVING);
}

TEST(HealthServerTest, SaysWhereItCannotListen) {
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
}  // namespace muster
