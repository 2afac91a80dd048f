#include "lib/status/grpc_status.h"

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"
#include "lib/status/utf8.h"
#include "proto/third_party/google/rpc/error_details.pb.h"

namespace muster {

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(ValidUtf8(status.message()));
  google::rpc::ErrorInfo info;
  info.set_reason(ReasonOf(status));
  info.set_domain("muster.io");
  details.add_details()->PackFrom(info);
  const std::vector<FieldFault> faults = FaultsOf(status);
  if (!faults.empty()) {
    google::rpc::BadRequest request;
    for (const FieldFault& fault : faults) {
      auto& violation = *request.add_field_violations();
      violation.set_field(fault.field);
      violation.set_description(fault.description);
    }
    details.add_details()->PackFrom(request);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      details.SerializeAsString());
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return result;
  std::string reason;
  for (const auto& detail : details.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest request;
    if (detail.UnpackTo(&info)) {
      reason = info.reason();
    } else if (detail.UnpackTo(&request) && request.field_violations_size() > 0) {
      std::vector<FieldFault> faults;
      for (const auto& violation : request.field_violations()) {
        faults.push_back({violation.field(), violation.description()});
      }
      // Keeps the server's message: it may say more than the faults do.
      FaultsToStatus(faults).ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
        result.SetPayload(url, payload);
      });
    }
  }
  return reason.empty() ? result : WithReason(std::move(result), reason);
}

}  // namespace muster
