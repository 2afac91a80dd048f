// Session numbers of shards, and the credentials of a job's members in these sessions.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "lib/plan/numbers.h"
#include "lib/transport/session/session.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Returns the number of the session that serves a shard. Normally it is the job number. With
// resources.ps_replication one ps thread may serve several shards of a job, so each shard has its
// own session, and so does each replica of a shard.
uint64_t SessionOf(const v1::JobPlan& plan, ShardIndex shard);
uint64_t SessionOfReplica(const v1::JobPlan& plan, ShardIndex shard);
bool IsSessionOfReplica(uint64_t session);
// Job numbers are below this.
inline constexpr uint64_t kJobNumbersEnd = uint64_t{1} << 39;

// Returns the plan as the shard sees it: its job number is the number of the shard's session.
v1::JobPlan PlanOfShard(const v1::JobPlan& plan, ShardIndex shard);

// Returns the credentials of that worker or shard in the plan's generation, with the plan's token.
// Returns INVALID_ARGUMENT (reason "BAD_PLAN") if the plan's token is malformed.
absl::StatusOr<LinkCredentials> CredentialsOf(const v1::JobPlan& plan, Rank rank);
absl::StatusOr<LinkCredentials> CredentialsOf(const v1::JobPlan& plan, ShardIndex shard);
// Returns the same credentials for a link into session `session`.
absl::StatusOr<LinkCredentials> CredentialsFor(uint64_t session, const v1::JobPlan& plan,
                                               Rank rank);
absl::StatusOr<LinkCredentials> CredentialsFor(uint64_t session, const v1::JobPlan& plan,
                                               ShardIndex shard);

}  // namespace muster
