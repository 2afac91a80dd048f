#include "services/coordinator/store/standby.h"

#include <glog/logging.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server_posix.h"
#include "lib/status/grpc_status.h"
#include "lib/status/status.h"

namespace muster {

// Refuses every call of every method at once.
class Standby::Refusal final : public grpc::CallbackGenericService {
 public:
  explicit Refusal(Standby* standby) : standby_(standby) {}

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    class Reactor final : public grpc::ServerGenericBidiReactor {
     public:
      explicit Reactor(const grpc::Status& status) { Finish(status); }
      void OnDone() override { delete this; }
    };
    absl::MutexLock lock(&standby_->why_mu_);
    return new Reactor(ToGrpc(WithReason(
        absl::UnavailableError(absl::StrCat("this coordinator is a standby: ", standby_->why_)),
        "NOT_LEADER")));
  }

 private:
  Standby* const standby_;
};

Standby::Standby(grpc::ServerBuilder& builder) : refusal_(std::make_unique<Refusal>(this)) {
  builder.RegisterCallbackGenericService(refusal_.get());
  refusing_ = builder.BuildAndStart();
  CHECK(refusing_ != nullptr) << "gRPC server without a port did not start; this cannot fail";
  if (auto* const health = refusing_->GetHealthCheckService()) health->SetServingStatus(false);
  absl::MutexLock lock(&mu_);
  serving_ = refusing_.get();
}

Standby::~Standby() { refusing_->Shutdown(std::chrono::system_clock::now()); }

void Standby::Explain(const absl::Status& why) {
  absl::MutexLock lock(&why_mu_);
  why_ = std::string(why.message());
}

void Standby::Serve(int socket) {
  absl::MutexLock lock(&mu_);
  grpc::AddInsecureChannelFromFd(serving_, socket);
}

void Standby::GiveWayTo(grpc::Server* server) {
  {
    absl::MutexLock lock(&mu_);
    serving_ = server;
  }
  refusing_->Shutdown(std::chrono::system_clock::now());
}

}  // namespace muster
