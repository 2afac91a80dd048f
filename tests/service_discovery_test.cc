// The services with which tools query a gRPC server: health and reflection.
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "lib/fleet/channel.h"
#include "lib/status/grpc_status.h"
#include "proto/third_party/grpc/health/v1/health.grpc.pb.h"
#include "proto/third_party/grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "tests/training_cluster.h"

namespace muster::service_discovery_test {
namespace {

using grpc::reflection::v1alpha::ServerReflection;
using ::testing::IsSupersetOf;

constexpr absl::Duration kPatience = absl::Seconds(30);

absl::StatusOr<std::vector<std::string>> AskReflection(TrainingCluster& cluster) {
  const auto stub = ServerReflection::NewStub(DialCoordinator(cluster.members().address()));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  const auto stream = stub->ServerReflectionInfo(&context);
  grpc::reflection::v1alpha::ServerReflectionRequest request;
  request.set_list_services("*");
  stream->Write(request);
  stream->WritesDone();
  grpc::reflection::v1alpha::ServerReflectionResponse response;
  std::vector<std::string> names;
  while (stream->Read(&response)) {
    for (const auto& service : response.list_services_response().service()) {
      names.push_back(service.name());
    }
  }
  if (absl::Status status = FromGrpc(stream->Finish()); !status.ok()) return status;
  return names;
}

TEST(ServiceDiscoveryTest, TheCoordinatorIsHealthyAndNamesItsServices) {
  TrainingCluster cluster({.ps = 1, .workers = 1, .ps_threads = 1});
  auto health = grpc::health::v1::Health::NewStub(DialCoordinator(cluster.members().address()));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  grpc::health::v1::HealthCheckResponse response;

  const absl::Status status = FromGrpc(health->Check(&context, {}, &response));

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  const auto services = AskReflection(cluster);
  ASSERT_TRUE(services.ok()) << services.status();
  EXPECT_THAT(*services,
              IsSupersetOf({"muster.v1.JobService", "muster.v1.FleetService",
                            "muster.v1.CheckpointService", "muster.v1.MemberService",
                            "grpc.health.v1.Health", ServerReflection::service_full_name()}));
}

TEST(ServiceDiscoveryTest, ReflectionCanBeTurnedOff) {
  TrainingCluster cluster(
      {.ps = 1, .workers = 1, .ps_threads = 1, .coordinator_flags = {"--reflection=false"}});

  const auto services = AskReflection(cluster);

  EXPECT_TRUE(absl::IsUnimplemented(services.status())) << services.status();
}

}  // namespace
}  // namespace muster::service_discovery_test
