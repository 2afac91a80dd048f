#include "lib/status/field_fault.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/status/status.h"
#include "lib/status/utf8.h"
#include "proto/third_party/google/rpc/error_details.pb.h"

namespace muster {
namespace {

constexpr absl::string_view kFaultsUrl = "type.googleapis.com/google.rpc.BadRequest";

void Attach(const std::vector<FieldFault>& faults, absl::Status& status) {
  google::rpc::BadRequest request;
  for (const FieldFault& fault : faults) {
    auto& violation = *request.add_field_violations();
    violation.set_field(ValidUtf8(fault.field));
    violation.set_description(ValidUtf8(fault.description));
  }
  status.SetPayload(kFaultsUrl, absl::Cord(request.SerializeAsString()));
}

}  // namespace

absl::Status FaultsToStatus(const std::vector<FieldFault>& faults, absl::string_view reason) {
  absl::Status status = WithReason(absl::InvalidArgumentError(absl::StrJoin(
                                       faults, "\n",
                                       [](std::string* out, const FieldFault& fault) {
                                         absl::StrAppend(out, fault.field, ": ", fault.description);
                                       })),
                                   reason);
  Attach(faults, status);
  return status;
}

absl::Status AtField(const absl::Status& status, absl::string_view field) {
  if (status.ok()) return status;
  absl::Status at = Annotate(status, field);
  Attach({{std::string(field), std::string(status.message())}}, at);
  return at;
}

std::vector<FieldFault> FaultsOf(const absl::Status& status) {
  std::vector<FieldFault> faults;
  google::rpc::BadRequest request;
  auto payload = status.GetPayload(kFaultsUrl);
  if (!payload || !request.ParseFromString(std::string(*payload))) return faults;
  for (const auto& violation : request.field_violations()) {
    faults.push_back({violation.field(), violation.description()});
  }
  return faults;
}

}  // namespace muster
