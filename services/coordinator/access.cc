#include "services/coordinator/access.h"

#include <glog/logging.h>

#include <array>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// A flood of them must not fill the disk.
constexpr double kRefusalsLoggedEverySeconds = 0.1;
constexpr size_t kObjectBytesMax = 128;  // in a log, of what a caller wrote
constexpr std::array<absl::string_view, 4> kPermissions = {"read", "submit", "admin", "member"};

bool Includes(Role role, Permission needed) {
  switch (role) {
    case Role::kAdmin:
      return needed != Permission::kMember;
    case Role::kSubmitter:
      return needed == Permission::kRead || needed == Permission::kSubmit;
    case Role::kPs:
    case Role::kWorker:
      return needed == Permission::kMember;
    case Role::kCoordinator:
      return false;
  }
  return false;
}

bool Includes(v1::TokenScope scope, Permission needed) {
  switch (needed) {
    case Permission::kRead:
      return scope >= v1::TOKEN_READ;
    case Permission::kSubmit:
      return scope >= v1::TOKEN_SUBMIT;
    case Permission::kAdmin:
      return scope >= v1::TOKEN_ADMIN;
    case Permission::kMember:
      return false;
  }
  return false;
}

// The one value of a field; "" where it is not there, or there twice.
absl::string_view Only(const grpc::ServerContextBase& context, const char* field) {
  const auto [first, last] = context.client_metadata().equal_range(field);
  if (first == last || std::next(first) != last) return "";
  return {first->second.data(), first->second.size()};
}

absl::Status Denied(const Caller& caller, Permission needed) {
  return WithReason(absl::PermissionDeniedError(absl::StrCat(
                        caller.ToString(), " may not do that: it needs the permission '",
                        kPermissions[static_cast<size_t>(needed)], "'")),
                    "NOT_ALLOWED");
}

}  // namespace

absl::StatusOr<Caller> Access::Check(const grpc::ServerContextBase& context,
                                     Permission needed) const {
  if (open()) return Caller{};
  auto caller = Find(context, needed);
  if (!caller.ok()) {
    const auto stamped = stamp_->Read(Only(context, CallerStamp::kField));
    LOG_EVERY_T(WARNING, kRefusalsLoggedEverySeconds)
        << "audit: refused, for want of the permission '"
        << kPermissions[static_cast<size_t>(needed)] << "', "
        << (stamped.ok() ? stamped->ToString() : "somebody") << ": " << ReasonOf(caller.status());
  }
  return caller;
}

absl::StatusOr<Caller> Access::Find(const grpc::ServerContextBase& context,
                                    Permission needed) const {
  auto caller = stamp_->Read(Only(context, CallerStamp::kField));
  if (!caller.ok()) {
    return WithReason(absl::UnauthenticatedError("the call did not come through the front door"),
                      "NO_CREDENTIALS");
  }
  absl::string_view authorization = Only(context, "authorization");
  if (!authorization.empty()) {
    if (!absl::ConsumePrefix(&authorization, "Bearer ")) {
      return WithReason(absl::UnauthenticatedError("authorization: 'Bearer TOKEN' is understood"),
                        "TOKEN_INVALID");
    }
    ASSIGN_OR_RETURN(const v1::AccessToken token, tokens_->Find(authorization, absl::Now()));
    caller->token = absl::StrCat(token.id(), " (", token.holder(), ")");
    if (!Includes(token.scope(), needed)) return Denied(*caller, needed);
    return caller;
  }
  if (!caller->certificate) {
    return WithReason(
        absl::UnauthenticatedError(
            "who are you? Give a token (--token-file) or a certificate (tls.crt and tls.key in the "
            "folder of --tls)"),
        "NO_CREDENTIALS");
  }
  if (!Includes(caller->certificate->role, needed)) return Denied(*caller, needed);
  return caller;
}

void Audit(const Caller& caller, absl::string_view method, absl::string_view object,
           const absl::Status& outcome) {
  LOG(INFO) << "audit: " << method << " " << absl::CEscape(object.substr(0, kObjectBytesMax))
            << " by " << caller.ToString() << ": " << (outcome.ok() ? "OK" : ReasonOf(outcome));
}

}  // namespace muster
