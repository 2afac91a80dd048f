#include "services/coordinator/store/standby.h"

#include <glog/logging.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server_posix.h"
#include "lib/status/status.h"

namespace muster {

Standby::Standby(grpc::ServerBuilder& builder) : refusal_([this] { return WhyNot(); }) {
  builder.RegisterCallbackGenericService(&refusal_);
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

absl::Status Standby::WhyNot() const {
  absl::MutexLock lock(&why_mu_);
  return WithReason(absl::UnavailableError(absl::StrCat("this coordinator is a standby: ", why_)),
                    "NOT_LEADER");
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
