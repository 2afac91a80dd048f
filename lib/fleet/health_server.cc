#include "lib/fleet/health_server.h"

#include <glog/logging.h>

#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/ext/health_check_service_server_builder_option.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_posix.h"
#include "lib/listener/grpc_listener.h"
#include "lib/status/status.h"
#include "proto/third_party/grpc/health/v1/health.grpc.pb.h"

ABSL_FLAG(std::string, health, "",
          "host:port that serves gRPC health alone, in plaintext, for probes; port 0 picks one, "
          "empty: none");

namespace muster {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// The limits fit a probe: it makes one small call at a time, mostly on a connection of its own.
constexpr int kRequestBytesMax = 1024;
constexpr int kStreamsOfConnectionMax = 8;
constexpr int kFieldBytesMax = 4096;
constexpr double kCallsOfConnectionPerSecond = 4;  // a call that is answered costs nothing
constexpr int kCallsOpenMax = 256;                 // of all connections
constexpr double kCallsEndedPerSecond = 1000;
constexpr double kConnectionsPerSecond =
    1000;  // probes must not wait for a second behind other connections
// The time that open calls have after their connection has reached its maximum age. Calls take
// microseconds, so none is cut off.
constexpr absl::Duration kGrace = absl::Seconds(1);

int Milliseconds(absl::Duration time) { return static_cast<int>(absl::ToInt64Milliseconds(time)); }

absl::Status CheckAddress(absl::string_view address) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon != address.npos && colon > 0 && absl::SimpleAtoi(address.substr(colon + 1), &port) &&
      port <= UINT16_MAX) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", address, "' is no host:port; try 0.0.0.0:9410"));
}

}  // namespace

class HealthServer::Impl final : public grpc::health::v1::Health::CallbackService {
 public:
  explicit Impl(absl::string_view role) : role_(role) {}
  ~Impl() override {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }

  absl::Status Listen(const std::string& address, const Limits& limits) {
    grpc::ServerBuilder builder;
    // Disable gRPC's built-in health service: it cannot be a server's only service.
    builder.SetOption(std::make_unique<grpc::HealthCheckServiceServerBuilderOption>(nullptr));
    builder.SetMaxReceiveMessageSize(kRequestBytesMax);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsOfConnectionMax);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kFieldBytesMax);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Milliseconds(limits.idle_max));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, Milliseconds(limits.age_max));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, Milliseconds(kGrace));
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    CHECK(server_ != nullptr) << "no listening socket; BuildAndStart() cannot fail here";
    auto listener =
        GrpcListener::Listen(address, {.credit = {.first = kStreamsOfConnectionMax,
                                                  .most = kStreamsOfConnectionMax,
                                                  .per_second = kCallsOfConnectionPerSecond,
                                                  .message_bytes_max = kRequestBytesMax},
                                       .calls_max = kCallsOpenMax,
                                       .returns_per_second = kCallsEndedPerSecond,
                                       .connections_max = limits.connections_max,
                                       .connections_per_second = kConnectionsPerSecond,
                                       // The listener's memory limit does not apply: the process's
                                       // memory is used by its work.
                                       .resident_bytes = [] { return int64_t{0}; },
                                       .greeting_max = limits.greeting_max});
    if (!listener.ok()) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", address, " (", listener.status().message(),
                       "): is another process using the port, and is the host one of this machine? "
                       "Port 0 picks a free one"));
    }
    listener_ = *std::move(listener);
    listener_->Open([this](int socket) { grpc::AddInsecureChannelFromFd(server_.get(), socket); });
    return absl::OkStatus();
  }

  void ReadyWhile(std::function<bool()> ready) {
    absl::MutexLock lock(&mu_);
    ready_ = std::move(ready);
  }

  int port() const { return listener_->port(); }

 private:
  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const HealthCheckRequest* request,
                                  HealthCheckResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (!request->service().empty() && request->service() != role_) {
      reactor->Finish(grpc::Status(
          grpc::StatusCode::NOT_FOUND,
          absl::StrCat("'", request->service(), "' is not served here; '' and '", role_, "' are")));
      return reactor;
    }
    const bool serving = request->service().empty() || Ready();
    response->set_status(serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING);
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  bool Ready() {
    absl::MutexLock lock(&mu_);
    return ready_ != nullptr && ready_();
  }

  const std::string role_;
  absl::Mutex mu_;
  std::function<bool()> ready_ ABSL_GUARDED_BY(mu_);  // null: not ready
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<GrpcListener> listener_;  // after server_: it hands connections to the server
};

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Listen(const std::string& address,
                                                                   absl::string_view role,
                                                                   const Limits& limits) {
  std::unique_ptr<Impl> impl;
  if (!address.empty()) {
    if (absl::Status good = CheckAddress(address); !good.ok()) return good;
    impl = std::make_unique<Impl>(role);
    if (absl::Status listens = impl->Listen(address, limits); !listens.ok()) return listens;
  }
  return std::unique_ptr<HealthServer>(new HealthServer(std::move(impl)));
}

HealthServer::HealthServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HealthServer::~HealthServer() = default;

void HealthServer::ReadyWhile(std::function<bool()> ready) {
  if (impl_ != nullptr) impl_->ReadyWhile(std::move(ready));
}

void HealthServer::Leave() { ReadyWhile(nullptr); }

int HealthServer::port() const { return impl_ == nullptr ? 0 : impl_->port(); }

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServerFromFlags(absl::string_view role) {
  auto server = HealthServer::Listen(absl::GetFlag(FLAGS_health), role);
  if (!server.ok()) return Annotate(server.status(), "--health");
  return server;
}

}  // namespace muster
