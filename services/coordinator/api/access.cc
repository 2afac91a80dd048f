#include "services/coordinator/api/access.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/log/log_scope.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr size_t kObjectBytesMax = 128;  // limit in a log for text that a caller wrote
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

// Returns the value of a field, or "" if it is missing or repeated.
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

// Identifies a caller across all its connections.
std::string WhoOf(const Caller& caller) {
  if (!caller.token.empty()) return absl::StrCat("token ", caller.token);
  if (caller.certificate) return ToString(*caller.certificate);
  return caller.address.substr(0, caller.address.rfind(':'));
}

std::string LeftOut(int64_t lines, absl::string_view what) {
  return lines == 0 ? "" : absl::StrCat("; ", lines, " ", what, " before it were left out");
}

}  // namespace

std::string Access::NameOf(const grpc::ServerContextBase& context) const {
  Caller caller = Stamped(context).value_or(Caller{});
  // Adds the token, if there is one.
  if (!open()) Judge(context, Permission::kRead, caller).IgnoreError();
  return caller.ToString();
}

absl::StatusOr<Caller> Access::Stamped(const grpc::ServerContextBase& context) const {
  if (stamp_ == nullptr) return Caller{};
  return stamp_->Read(Only(context, CallerStamp::kField));
}

absl::StatusOr<Caller> Access::Check(const grpc::ServerContextBase& context,
                                     absl::string_view method, Permission needed) const {
  const absl::StatusOr<Caller> stamped = Stamped(context);
  Caller caller = stamped.value_or(Caller{});
  if (open()) return caller;
  absl::Status allowed;
  if (stamped.ok()) {
    allowed = Judge(context, needed, caller);
  } else {
    allowed = WithReason(absl::UnauthenticatedError("the call did not come through the listener"),
                         "NO_CREDENTIALS");
  }
  if (allowed.ok()) return caller;
  AuditRefusal(caller, method, allowed);
  return allowed;
}

absl::Status Access::Judge(const grpc::ServerContextBase& context, Permission needed,
                           Caller& caller) const {
  absl::string_view authorization = Only(context, "authorization");
  if (!authorization.empty()) {
    if (!absl::ConsumePrefix(&authorization, "Bearer ")) {
      return WithReason(absl::UnauthenticatedError("authorization: 'Bearer TOKEN' is understood"),
                        "TOKEN_INVALID");
    }
    ASSIGN_OR_RETURN(const v1::AccessToken token, tokens_->Find(authorization, absl::Now()));
    caller.token = absl::StrCat(token.id(), " (", token.holder(), ")");
    return Includes(token.scope(), needed) ? absl::OkStatus() : Denied(caller, needed);
  }
  if (!caller.certificate) {
    return WithReason(absl::UnauthenticatedError("no credentials: give a token (--token-file) or a "
                                                 "certificate (tls.crt and tls.key in the "
                                                 "folder of --tls)"),
                      "NO_CREDENTIALS");
  }
  return Includes(caller.certificate->role, needed) ? absl::OkStatus() : Denied(caller, needed);
}

void Access::Earn(absl::Duration now, Lines& lines) {
  const double earned = absl::ToDoubleSeconds(now - lines.counted) * kWrittenPerSecond;
  lines.left = std::min(lines.left + earned, kWrittenAtOnce);
  lines.counted = now;
}

// Limits log lines, because a flood of them must not fill the disk.
std::optional<int64_t> Access::Take(absl::Duration now, Lines& lines) {
  Earn(now, lines);
  if (lines.left < 1) {
    ++lines.left_out;
    return std::nullopt;
  }
  lines.left -= 1;
  return std::exchange(lines.left_out, 0);
}

// Drops the log limits of idle callers. Without TLS a caller is an address, so their number is
// unlimited.
void Access::ForgetIdle(absl::Duration now) const {
  absl::erase_if(failures_, [&](auto& entry) {
    auto& [who, lines] = entry;
    Earn(now, lines);
    const bool idle = lines.left >= kWrittenAtOnce;
    LOG_IF(INFO, idle && lines.left_out > 0)
        << "audit: " << lines.left_out << " failures of " << who << " were left out";
    return idle;
  });
  forget_at_ = std::max(kCallersMin, 2 * failures_.size());
}

void Access::AuditRefusal(const Caller& caller, absl::string_view method,
                          const absl::Status& why) const {
  std::optional<int64_t> left_out;
  {
    absl::MutexLock lock(&mu_);
    left_out = Take(SteadyNow(), refusals_[ReasonOf(why)]);
  }
  if (!left_out) return;
  const std::string result = ReasonOf(why);
  const LogScope scope({.method = std::string(method),
                        .caller = caller.Name(),
                        .address = caller.address,
                        .result = result});
  LOG(WARNING) << "audit: " << method << " by " << caller.ToString() << ": " << result
               << LeftOut(*left_out, "refusals for this reason");
}

void Access::Audit(const Caller& caller, absl::string_view method, absl::string_view object,
                   const absl::Status& outcome) const {
  std::optional<int64_t> left_out = 0;
  if (!outcome.ok()) {
    absl::MutexLock lock(&mu_);
    const absl::Duration now = SteadyNow();
    if (failures_.size() >= forget_at_) ForgetIdle(now);
    left_out = Take(now, failures_[WhoOf(caller)]);
  }
  if (!left_out) return;
  const absl::string_view resource = object.substr(0, kObjectBytesMax);
  const std::string result = outcome.ok() ? "OK" : ReasonOf(outcome);
  const LogScope scope({.method = std::string(method),
                        .resource = std::string(resource),
                        .caller = caller.Name(),
                        .address = caller.address,
                        .result = result});
  LOG(INFO) << "audit: " << method << (resource.empty() ? "" : " ") << absl::CEscape(resource)
            << " by " << caller.ToString() << ": " << result
            << LeftOut(*left_out, "failures of this caller");
}

}  // namespace muster
