// Who may call what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "services/coordinator/api/token_table.h"
#include "services/coordinator/common/caller.h"

namespace muster {

// What a method of a person's service asks of its caller. Each includes those before it. No member
// has any, and MemberService asks for none: see Access::CheckMember().
enum class Permission : uint8_t { kRead, kSubmit, kAdmin };

// Thread-safe, never blocks. Deny by default: every method of every service asks, before anything
// else.
class Access {
 public:
  // Nobody is asked: the coordinator listens on loopback alone, or --insecure was said. The front
  // door's stamp says from where a call comes; it outlives this. Null: it is not known.
  static Access Open(const CallerStamp* stamp = nullptr) { return Access(stamp, nullptr); }
  // By what the front door has stamped, and by tokens; both outlive this.
  static Access Checked(const CallerStamp* stamp, const TokenTable* tokens) {
    return Access(stamp, tokens);
  }

  // The caller of `context`, who calls `method`. UNAUTHENTICATED (reason "NO_CREDENTIALS";
  // "TOKEN_INVALID"): who it is is not known; PERMISSION_DENIED (reason "NOT_ALLOWED"): it may not
  // do that. The audit log has a line for each that is refused, as long as they are not too many.
  absl::StatusOr<Caller> Check(const grpc::ServerContextBase& context, absl::string_view method,
                               Permission needed) const ABSL_LOCKS_EXCLUDED(mu_);
  // The same for a method of MemberService, all of which are for members alone: no token will do,
  // nor the certificate of a person.
  absl::StatusOr<Caller> CheckMember(const grpc::ServerContextBase& context,
                                     absl::string_view method) const ABSL_LOCKS_EXCLUDED(mu_);

  // Who calls, as far as it is known, for the log; nothing is asked of him.
  std::string NameOf(const grpc::ServerContextBase& context) const;

  bool open() const { return tokens_ == nullptr; }

  // One line of the audit log: who did what from where, and what came of it. Each method that
  // changes something writes one for each call that Check() has let through.
  void Audit(const Caller& caller, absl::string_view method, absl::string_view object,
             const absl::Status& outcome) const ABSL_LOCKS_EXCLUDED(mu_);
  // Of who was refused elsewhere than by Check().
  void AuditRefusal(const Caller& caller, absl::string_view method, const absl::Status& why) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Of refusals for one reason so many lines are written at once, and so many more with time, so
  // that strangers who give nothing push no wrong token out; of what each caller tries in vain as
  // many. The line after those that were left out says how many they were.
  static constexpr double kWrittenAtOnce = 100;
  static constexpr double kWrittenPerSecond = 1;

 private:
  static constexpr size_t kCallersMin = 1024;  // before those are forgotten that try nothing now

  Access(const CallerStamp* stamp, const TokenTable* tokens) : stamp_(stamp), tokens_(tokens) {}

  // Who may: persons with a permission, or, without one, members.
  using Needed = std::optional<Permission>;

  absl::StatusOr<Caller> Stamped(const grpc::ServerContextBase& context) const;
  absl::StatusOr<Caller> CheckNeeded(const grpc::ServerContextBase& context,
                                     absl::string_view method, Needed needed) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Whether `caller` may; completes it by the token of the call.
  absl::Status Judge(const grpc::ServerContextBase& context, Needed needed, Caller& caller) const;

  struct Lines {
    double left = kWrittenAtOnce;                   // that may be written
    absl::Duration counted = absl::ZeroDuration();  // until when
    int64_t left_out = 0;
  };
  static void Earn(absl::Duration now, Lines& lines);
  // How many were left out before this one; nullopt: so is this one.
  static std::optional<int64_t> Take(absl::Duration now, Lines& lines);
  void ForgetIdle(absl::Duration now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const CallerStamp* const stamp_;
  const TokenTable* const tokens_;  // null: nobody is asked

  mutable absl::Mutex mu_;
  mutable absl::flat_hash_map<std::string, Lines> refusals_ ABSL_GUARDED_BY(mu_);  // by reason
  mutable absl::flat_hash_map<std::string, Lines> failures_ ABSL_GUARDED_BY(mu_);  // by caller
  mutable size_t forget_at_ ABSL_GUARDED_BY(mu_) = kCallersMin;  // so many callers
};

}  // namespace muster
