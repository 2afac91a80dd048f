#include "lib/fleet/leader.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"
#include "lib/status/status.h"
#include "proto/third_party/grpc/health/v1/health.grpc.pb.h"

namespace muster {

absl::Status FindLeader(const CoordinatorTarget& target, absl::Duration each_max) {
  if (target.addresses().size() == 1) return absl::OkStatus();
  std::string last;
  for (size_t asked = 0; asked < target.addresses().size(); ++asked) {
    const std::string& address = target.address();
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + each_max));
    grpc::health::v1::HealthCheckResponse response;
    const grpc::Status status =
        grpc::health::v1::Health::NewStub(DialCoordinator(target))->Check(&context, {}, &response);
    if (status.ok() && response.status() == grpc::health::v1::HealthCheckResponse::SERVING) {
      return absl::OkStatus();
    }
    last = absl::StrCat(address, status.ok() ? " stands by" : ": ", status.error_message());
    target.PassOver(address);
  }
  return WithReason(absl::UnavailableError(
                        absl::StrCat("no coordinator of ", absl::StrJoin(target.addresses(), ", "),
                                     " leads (", last, "): try again in some seconds")),
                    "NOT_LEADER");
}

}  // namespace muster
