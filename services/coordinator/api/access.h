// Access control: decides which caller may call which method.
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

// The permission that a method requires. kSubmit includes kRead, and kAdmin includes both.
// kMember, which MemberService requires, is apart: only members have it, and they have no other.
enum class Permission : uint8_t { kRead, kSubmit, kAdmin, kMember };

// Denies by default: every method of every service calls Check() first.
// Thread-safe. Never blocks.
class Access {
 public:
  // Allows every call. Used if the coordinator listens on loopback only, or with --insecure.
  // `stamp` gives the address of a call and must outlive this. Null: the address is unknown.
  static Access Open(const CallerStamp* stamp = nullptr) { return Access(stamp, nullptr); }
  // Decides by the listener's stamp and by tokens. Both arguments must outlive this.
  static Access Checked(const CallerStamp* stamp, const TokenTable* tokens) {
    return Access(stamp, tokens);
  }

  // Returns the caller of `context`, which calls `method`.
  // Returns UNAUTHENTICATED (reason "NO_CREDENTIALS" or "TOKEN_INVALID") if the caller is unknown.
  // Returns PERMISSION_DENIED (reason "NOT_ALLOWED") if it lacks the permission. Refusals are in
  // the audit log, within a limit.
  absl::StatusOr<Caller> Check(const grpc::ServerContextBase& context, absl::string_view method,
                               Permission needed) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the name of the caller for the log, as far as it is known. Requires no permission.
  std::string NameOf(const grpc::ServerContextBase& context) const;

  bool open() const { return tokens_ == nullptr; }

  // Writes a line of the audit log: the caller, its address, the method, its object and the
  // outcome. Each method that changes something calls this for every call that Check() has
  // admitted.
  void Audit(const Caller& caller, absl::string_view method, absl::string_view object,
             const absl::Status& outcome) const ABSL_LOCKS_EXCLUDED(mu_);
  // Writes a line for a caller that was refused by other means than Check().
  void AuditRefusal(const Caller& caller, absl::string_view method, const absl::Status& why) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Limits on log lines: for each refusal reason, so that many calls without credentials do not
  // hide wrong tokens, and for the failures of each caller. The first line after omitted ones has
  // their number.
  static constexpr double kWrittenAtOnce = 100;
  static constexpr double kWrittenPerSecond = 1;

 private:
  static constexpr size_t kCallersMin = 1024;  // Idle callers are forgotten only above this number.

  Access(const CallerStamp* stamp, const TokenTable* tokens) : stamp_(stamp), tokens_(tokens) {}

  absl::StatusOr<Caller> Stamped(const grpc::ServerContextBase& context) const;
  // Returns OK if `caller` may call. Adds the token of the call to `caller`.
  absl::Status Judge(const grpc::ServerContextBase& context, Permission needed,
                     Caller& caller) const;

  struct Lines {
    double left = kWrittenAtOnce;                   // lines that may be written now
    absl::Duration counted = absl::ZeroDuration();  // time up to which `left` was refilled
    int64_t left_out = 0;
  };
  static void Earn(absl::Duration now, Lines& lines);
  // Returns the number of lines omitted before this one, or nullopt if this one is omitted, too.
  static std::optional<int64_t> Take(absl::Duration now, Lines& lines);
  void ForgetIdle(absl::Duration now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const CallerStamp* const stamp_;
  const TokenTable* const tokens_;  // null: every call is allowed

  mutable absl::Mutex mu_;
  mutable absl::flat_hash_map<std::string, Lines> refusals_ ABSL_GUARDED_BY(mu_);  // by reason
  mutable absl::flat_hash_map<std::string, Lines> failures_ ABSL_GUARDED_BY(mu_);  // by caller
  // Number of callers at which idle ones are forgotten.
  mutable size_t forget_at_ ABSL_GUARDED_BY(mu_) = kCallersMin;
};

}  // namespace muster
