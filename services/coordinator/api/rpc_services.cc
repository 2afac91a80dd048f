#include "services/coordinator/api/rpc_services.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "glog/logging.h"
#include "grpcpp/server_builder.h"
#include "lib/version/build.h"
#include "proto/third_party/grpc/health/v1/health.grpc.pb.h"

namespace muster {
namespace {

std::vector<std::string> OwnServices() {
  return {v1::JobService::service_full_name(),        v1::FleetService::service_full_name(),
          v1::CheckpointService::service_full_name(), v1::MemberService::service_full_name(),
          v1::AccessService::service_full_name(),     v1::AdminService::service_full_name()};
}

std::vector<std::string> AllServices() {
  std::vector<std::string> services = OwnServices();
  services.push_back(grpc::health::v1::Health::service_full_name());
  services.push_back(grpc::reflection::v1alpha::ServerReflection::service_full_name());
  return services;
}

// The caller is probably a program of another version, which can only show this message. The
// message has no version, because the caller is not authenticated.
absl::Status NoSuchMethod() {
  return absl::UnimplementedError(
      "this coordinator has no such method: it and the program that calls it are of different "
      "versions. All programs of a cluster should be of one version (muster members)");
}

}  // namespace

RpcServices::RpcServices(const Options& options)
    : watch_({}),
      gate_{.access = options.access, .admission = &admission_, .watch = &watch_},
      jobs_(options.coordinator, gate_),
      fleet_(options.coordinator, options.access),
      checkpoints_(options.coordinator, gate_),
      members_(options.coordinator, gate_),
      people_(options.tokens, options.access),
      administration_(&options.coordinator->store(), gate_, ThisBuild().version),
      reflection_(AllServices(), gate_),
      unknown_methods_(NoSuchMethod),
      answers_({.name = [access = options.access](
                            const auto& context) { return access->NameOf(context); },
                .crowded = options.crowded}),
      calls_(*options.metrics, OwnServices()) {
  grpc::ServerBuilder builder;
  ConfigureServer(builder, options.age);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(calls_.Interceptors());
  interceptors.push_back(answers_.Interceptors());
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  builder.RegisterService(&jobs_);
  builder.RegisterService(&fleet_);
  builder.RegisterService(&checkpoints_);
  builder.RegisterService(&members_);
  builder.RegisterService(&people_);
  builder.RegisterService(&administration_);
  if (options.reflection) builder.RegisterService(&reflection_);
  builder.RegisterCallbackGenericService(&unknown_methods_);
  server_ = builder.BuildAndStart();
  CHECK(server_ != nullptr) << "gRPC server without a port did not start; this cannot fail";
}

}  // namespace muster
