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

// Clients accept 8 KiB of metadata by default, all fields together. A client that is sent more
// closes the connection with all its calls, and loses the error. The rest of the 8 KiB is for
// fields that are not ours.
constexpr size_t kErrorBytesMax = 7 << 10;

// Returns the longest prefix of `text` of at most `bytes` that ends with a whole character, and
// says how much is missing.
std::string Shortened(const std::string& text, size_t bytes) {
  if (text.size() <= bytes) return text;
  size_t end = bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), "... (", text.size() - end, " bytes more)");
}

// Returns 0 if another attempt would not succeed, or may be made at once. A full disk or queue
// drains slowly; an absent process is back in a second or two.
absl::Duration RetryDelayOf(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return absl::Seconds(1);
  if (!absl::IsResourceExhausted(status)) return absl::ZeroDuration();
  return ReasonOf(status) == "TOO_MANY_CALLS" ? absl::Seconds(1) : absl::Seconds(10);
}

// The size on the wire: the message is percent-encoded, the details are in base64.
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

// If the whole is too long, the message is cut first, because the faults repeat it. Then faults are
// dropped from the end.
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
      // Keep the server's message, which may say more than the faults.
      FaultsToStatus(faults).ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
        result.SetPayload(url, payload);
      });
    }
  }
  return reason.empty() ? result : WithReason(std::move(result), reason);
}

}  // namespace muster
