#include "lib/status/status.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace muster {
namespace {
constexpr absl::string_view kReasonUrl = "muster.io/reason";
}

absl::Status WithReason(absl::Status status, absl::string_view reason) {
  status.SetPayload(kReasonUrl, absl::Cord(reason));
  return status;
}

std::string ReasonOf(const absl::Status& status) {
  if (status.ok()) return "";
  if (auto reason = status.GetPayload(kReasonUrl)) return std::string(*reason);
  return absl::StatusCodeToString(status.code());
}

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

}  // namespace muster
