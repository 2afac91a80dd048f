// In which session a shard is served, and how a member of a job introduces itself to the others.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "lib/plan/numbers.h"
#include "lib/transport/session/session.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// The number of the session of a shard. With one ps for each shard that is the job's; where a ps
// may come to serve several shards on one thread (resources.ps_replication) each has a session of
// its own, and so has its backup.
uint64_t SessionOf(const v1::JobPlan& plan, ShardIndex shard);
uint64_t SessionOfBackup(const v1::JobPlan& plan, ShardIndex shard);
bool IsSessionOfBackup(uint64_t session);
// Job numbers end below this.
inline constexpr uint64_t kJobNumbersEnd = uint64_t{1} << 39;

// The plan as a shard sees it: its job number is that of its session.
v1::JobPlan PlanOfShard(const v1::JobPlan& plan, ShardIndex shard);

// As that worker or that shard of the plan's generation, with the plan's token. INVALID_ARGUMENT
// (reason "BAD_PLAN") where the plan has no proper one.
absl::StatusOr<LinkCredentials> CredentialsOf(const v1::JobPlan& plan, Rank rank);
absl::StatusOr<LinkCredentials> CredentialsOf(const v1::JobPlan& plan, ShardIndex shard);
// Likewise, to one who is served in that session.
absl::StatusOr<LinkCredentials> CredentialsFor(uint64_t session, const v1::JobPlan& plan,
                                               Rank rank);
absl::StatusOr<LinkCredentials> CredentialsFor(uint64_t session, const v1::JobPlan& plan,
                                               ShardIndex shard);

}  // namespace muster
