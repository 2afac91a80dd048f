// The checks that calls pass before they reach the core.
#pragma once

#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "lib/status/grpc_status.h"
#include "lib/status/status.h"
#include "services/coordinator/api/access.h"
#include "services/coordinator/common/admission.h"
#include "services/coordinator/common/call_watch.h"
#include "services/coordinator/common/caller.h"

namespace muster {

// A call that may proceed.
struct AdmittedCall {
  Caller caller;
  Admission::Ticket ticket;  // the call counts against the limit of its kind while this exists
};

// The services share the three objects, which must outlive them. Thread-safe.
struct CallGate {
  const Access* access = nullptr;
  Admission* admission = nullptr;
  CallWatch* watch = nullptr;

  // Checks the caller's permission, then the number of calls of this kind. Errors are those of
  // Access::Check() and Admission::Enter().
  absl::StatusOr<AdmittedCall> Admit(const grpc::ServerContextBase& context,
                                     absl::string_view method, Permission needed,
                                     CallKind kind) const {
    ASSIGN_OR_RETURN(Caller caller, access->Check(context, method, needed));
    ASSIGN_OR_RETURN(Admission::Ticket ticket, admission->Enter(kind, context.peer()));
    return AdmittedCall{std::move(caller), std::move(ticket)};
  }

  // Calls `change` if the caller may submit jobs. Writes the outcome to the audit log and returns
  // it: a Status or a StatusOr. `object` is the name of what is changed.
  template <typename Change>
  std::invoke_result_t<Change> Audited(const grpc::ServerContextBase& context,
                                       absl::string_view method, absl::string_view object,
                                       Change change) const {
    ASSIGN_OR_RETURN(const Caller caller, access->Check(context, method, Permission::kSubmit));
    auto changed = change();
    if constexpr (std::is_same_v<decltype(changed), absl::Status>) {
      access->Audit(caller, method, object, changed);
    } else {
      access->Audit(caller, method, object, changed.status());
    }
    return changed;
  }

  // Cancels the call if its guard is not advanced for `patience`.
  template <typename Context>
  CallWatch::Guard Watch(Context* context, absl::Duration patience) const {
    return CallWatch::Guard(watch, patience, [context] { context->TryCancel(); });
  }
};

// Answers a call with `result`.
template <typename Response>
grpc::Status Answer(absl::StatusOr<Response> result, Response* response) {
  if (!result.ok()) return ToGrpc(result.status());
  *response = *std::move(result);
  return grpc::Status::OK;
}

}  // namespace muster
