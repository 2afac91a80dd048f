// What tools ask a gRPC server before they use it: is it well, and what does it serve?
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "gtest/gtest.h"
#include "lib/fleet/channel.h"
#include "lib/status/grpc_status.h"
#include "proto/third_party/grpc/health/v1/health.grpc.pb.h"
#include "tests/training_cluster.h"

namespace muster::service_discovery_test {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);

// The answer to ListServices as it travels: Debian ships no messages of the reflection service.
absl::StatusOr<std::string> AskReflection(TrainingCluster& cluster) {
  grpc::GenericStub stub(DialCoordinator(cluster.members().address()));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  const grpc::Slice list_services("\x3a\x01*");  // field 7, one byte long
  const grpc::ByteBuffer request(&list_services, 1);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> finished;
  // On the wire one message each way on a stream is a unary call.
  stub.UnaryCall(&context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", {},
                 &request, &response,
                 [&](grpc::Status status) { finished.set_value(std::move(status)); });
  if (absl::Status status = FromGrpc(finished.get_future().get()); !status.ok()) return status;
  std::vector<grpc::Slice> slices;
  if (!response.Dump(&slices).ok()) return absl::InternalError("no bytes");
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

TEST(ServiceDiscoveryTest, TheCoordinatorIsHealthyAndKeepsItsSchemaToItself) {
  TrainingCluster cluster({.ps = 1, .workers = 1, .ps_threads = 1});
  auto health = grpc::health::v1::Health::NewStub(DialCoordinator(cluster.members().address()));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  grpc::health::v1::HealthCheckResponse response;

  const absl::Status status = FromGrpc(health->Check(&context, {}, &response));

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  const auto services = AskReflection(cluster);
  EXPECT_TRUE(absl::IsUnimplemented(services.status())) << services.status();
}

TEST(ServiceDiscoveryTest, ReflectionNamesEveryServiceWhereItIsAskedFor) {
  TrainingCluster cluster(
      {.ps = 1, .workers = 1, .ps_threads = 1, .coordinator_flags = {"--reflection=true"}});

  const auto services = AskReflection(cluster);

  ASSERT_TRUE(services.ok()) << services.status();
  for (const char* service :
       {"muster.v1.JobService", "muster.v1.FleetService", "muster.v1.CheckpointService",
        "muster.v1.MemberService", "grpc.health.v1.Health"}) {
    EXPECT_THAT(*services, HasSubstr(service));
  }
}

}  // namespace
}  // namespace muster::service_discovery_test
