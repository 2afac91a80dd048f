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
  static Access Open() { return Access(nullptr, nullptr); }
  // By what the front door has stamped, and by tokens; both outlive this.
  static Access Checked(const CallerStamp* stamp, const TokenTable* tokens) {
    return Access(stamp, tokens);
  }

  // The caller of `context`. UNAUTHENTICATED (reason "NO_CREDENTIALS"; "TOKEN_INVALID"): who it is
  // is not known; PERMISSION_DENIED (reason "NOT_ALLOWED"): it may not do that.
  absl::StatusOr<Caller> Check(const grpc::ServerContextBase& context, Permission needed) const;

  bool open() const { return stamp_ == nullptr; }

 private:
  Access(const CallerStamp* stamp, const TokenTable* tokens) : stamp_(stamp), tokens_(tokens) {}

  absl::StatusOr<Caller> Find(const grpc::ServerContextBase& context, Permission needed) const;

  const CallerStamp* const stamp_;
  const TokenTable* const tokens_;
};

// One line of the audit log: who did what from where, and what came of it.
void Audit(const Caller& caller, absl::string_view method, absl::string_view object,
           const absl::Status& outcome);

}  // namespace muster
