#include "lib/status/grpc_status.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"
#include "lib/status/utf8.h"
#include "proto/third_party/google/rpc/error_details.pb.h"

namespace muster {

namespace {

// What a client takes of metadata, all fields together: 8 KiB unless it says otherwise. One that is
// sent more closes the connection, with all its calls, and knows nothing of the error. The rest is
// for fields that are not ours.
constexpr size_t kErrorBytesMax = 7 << 10;

// The longest beginning of `text` of at most `bytes` that ends with a whole character, and what is
// missing.
std::string Shortened(const std::string& text, size_t bytes) {
  if (text.size() <= bytes) return text;
  size_t end = bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), "... (", text.size() - end, " bytes more)");
}

// Zero: another attempt would fare no better, or soon enough. A disk or a queue that is full
// empties slowly, whoever is away is back in a second or two.
absl::Duration RetryDelayOf(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return absl::Seconds(1);
  if (!absl::IsResourceExhausted(status)) return absl::ZeroDuration();
  return ReasonOf(status) == "TOO_MANY_CALLS" ? absl::Seconds(1) : absl::Seconds(10);
}

// On the wire: the message percent-encoded, the details in base64.
size_t WireBytes(const std::string& message, const std::string& details) {
  size_t bytes = (details.size() + 2) / 3 * 4;
  for (const char c : message) bytes += c >= ' ' && c <= '~' && c != '%' ? 1 : 3;
  return bytes;
}

std::string Details(const absl::Status& status, const std::string& message,
                    absl::Span<const FieldFault> faults) {
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(ReasonOf(status));
  info.set_domain("muster.io");
  details.add_details()->PackFrom(info);
  if (const absl::Duration delay = RetryDelayOf(status); delay > absl::ZeroDuration()) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(delay));
    details.add_details()->PackFrom(retry);
  }
  if (!faults.empty()) {
    google::rpc::BadRequest request;
    for (const FieldFault& fault : faults) {
      auto& violation = *request.add_field_violations();
      violation.set_field(fault.field);
      violation.set_description(fault.description);
    }
    details.add_details()->PackFrom(request);
  }
  return details.SerializeAsString();
}

}  // namespace

// Where all of it is too much, the message is cut first, which says the faults once more, then
// faults are left out from the end.
grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string whole = ValidUtf8(status.message());
  const std::vector<FieldFault> all = FaultsOf(status);
  absl::Span<const FieldFault> faults = all;
  std::string message = whole, details = Details(status, message, faults);
  for (size_t bytes = kErrorBytesMax / 3; WireBytes(message, details) > kErrorBytesMax;) {
    message = Shortened(whole, bytes);
    if (bytes > kErrorBytesMax / 6 || faults.empty()) {
      bytes /= 2;
    } else {
      faults.remove_suffix((faults.size() + 1) / 2);
    }
    details = Details(status, message, faults);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message, details);
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
