#include "lib/shard/plan_credentials.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {

namespace {

absl::StatusOr<LinkCredentials> As(LinkRole role, uint32_t index, const v1::JobPlan& plan) {
  absl::StatusOr<SessionToken> token = SessionToken::FromBytes(plan.session_token());
  if (!token.ok()) {
    return WithReason(Annotate(token.status(), absl::StrCat("plan of ", plan.job())), "BAD_PLAN");
  }
  return LinkCredentials{.self = {.job = plan.job_number(),
                                  .generation = plan.generation(),
                                  .role = role,
                                  .index = index},
                         .token = *token};
}

}  // namespace

absl::StatusOr<LinkCredentials> CredentialsOf(const v1::JobPlan& plan, Rank rank) {
  return As(LinkRole::kWorker, static_cast<uint32_t>(rank), plan);
}

absl::StatusOr<LinkCredentials> CredentialsOf(const v1::JobPlan& plan, ShardIndex shard) {
  return As(LinkRole::kShard, static_cast<uint32_t>(shard), plan);
}

}  // namespace muster
