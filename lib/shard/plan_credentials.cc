#include "lib/shard/plan_credentials.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {

absl::StatusOr<LinkCredentials> CredentialsOf(const v1::JobPlan& plan, LinkRole role, int index) {
  absl::StatusOr<SessionToken> token = SessionToken::FromBytes(plan.session_token());
  if (!token.ok()) {
    return WithReason(Annotate(token.status(), absl::StrCat("plan of ", plan.job())), "BAD_PLAN");
  }
  return LinkCredentials{.self = {.job = plan.job_number(),
                                  .generation = plan.generation(),
                                  .role = role,
                                  .index = static_cast<uint32_t>(index)},
                         .token = *token};
}

}  // namespace muster
