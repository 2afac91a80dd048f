// Replicas of shards: which shards have one, and the plan as a replica sees it.
#pragma once

#include "absl/status/status.h"
#include "lib/plan/numbers.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// A replica is an ordinary ParameterShard on a shard thread of another ps. It serves a job with one
// worker: its shard, which pushes the sum of every chunk's gradients. It therefore has a session of
// its own, and a thread may serve any number of replicas beside its own shard of the job.

// Returns whether the plan gives this shard, or any shard, a replica.
bool HasReplica(const v1::JobPlan& plan, ShardIndex shard);
bool IsReplicated(const v1::JobPlan& plan);
// Returns INVALID_ARGUMENT (reason "BAD_PLAN") if a replica is on an impossible member, if a job
// without replication or in a mode other than bsp has one, or if the job number is too large.
absl::Status CheckReplicas(const v1::JobPlan& plan);

// Returns the plan as the replica of `shard` sees it; compare PlanOfShard(). IsOfReplica() tells
// such a plan from others.
v1::JobPlan PlanOfReplica(const v1::JobPlan& plan, ShardIndex shard);
bool IsOfReplica(const v1::JobPlan& plan);

}  // namespace muster
