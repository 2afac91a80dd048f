// Who may call what.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "services/coordinator/caller.h"
#include "services/coordinator/token_table.h"

namespace muster {

// What a method asks of its caller. Each includes those before it but kMember, which stands alone.
enum class Permission : uint8_t { kRead, kSubmit, kAdmin, kMember };

// Thread-safe, never blocks. Deny by default: every method of every service asks, before anything
// else.
class Access {
 public:
  // Nobody is asked: the coordinator listens on loopback alone, or --insecure was said.
  static Access Open() { return Access("", nullptr); }
  // By what the front door has stamped in `stamp_field`, and by tokens, which outlive this.
  static Access Checked(std::string stamp_field, const TokenTable* tokens) {
    return Access(std::move(stamp_field), tokens);
  }

  // The caller of `context`. UNAUTHENTICATED (reason "NO_CREDENTIALS"; "TOKEN_INVALID"): who it is
  // is not known; PERMISSION_DENIED (reason "NOT_ALLOWED"): it may not do that.
  absl::StatusOr<Caller> Check(const grpc::ServerContextBase& context, Permission needed) const;

  bool open() const { return stamp_field_.empty(); }

 private:
  Access(std::string stamp_field, const TokenTable* tokens)
      : stamp_field_(std::move(stamp_field)), tokens_(tokens) {}

  const std::string stamp_field_;
  const TokenTable* const tokens_;
};

// A member can only speak as itself: PERMISSION_DENIED (reason "NOT_YOUR_NAME") unless the caller's
// certificate is of this role, and of this name or of none. OK where nobody is asked.
absl::Status CheckSpeaksAs(const Caller& caller, Role role, const std::string& member);

// One line of the audit log: who did what from where, and what came of it.
void Audit(const Caller& caller, absl::string_view method, absl::string_view object,
           const absl::Status& outcome);

}  // namespace muster
