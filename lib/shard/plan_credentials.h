// How a member of a job introduces itself to the others.
#pragma once

#include "absl/status/statusor.h"
#include "lib/plan/numbers.h"
#include "lib/transport/session.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// As that worker or that shard of the plan's generation, with the plan's token. INVALID_ARGUMENT
// (reason "BAD_PLAN") where the plan has no proper one.
absl::StatusOr<LinkCredentials> CredentialsOf(const v1::JobPlan& plan, Rank rank);
absl::StatusOr<LinkCredentials> CredentialsOf(const v1::JobPlan& plan, ShardIndex shard);

}  // namespace muster
