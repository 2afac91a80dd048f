// Backups of shards: who has one, and what the plan is in a backup's eyes.
#pragma once

#include "absl/status/status.h"
#include "lib/plan/numbers.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// A backup is a ParameterShard like any other, on a shard thread of another ps, in a job of one
// worker: its shard, which pushes the sum of every chunk's gradients. So it has a session of its
// own, and a thread may have any number of them beside its own shard of the job.

// Whether the plan gives the shard a backup, and whether it gives any shard one.
bool HasBackup(const v1::JobPlan& plan, ShardIndex shard);
bool IsReplicated(const v1::JobPlan& plan);
// INVALID_ARGUMENT (reason "BAD_PLAN") where a backup cannot be where the plan has it, or the job's
// mode has none.
absl::Status CheckBackups(const v1::JobPlan& plan);

// The plan as the backup of `shard` sees it, see also PlanOfShard(); and whether it is such a one.
v1::JobPlan PlanOfBackup(const v1::JobPlan& plan, ShardIndex shard);
bool IsOfBackup(const v1::JobPlan& plan);

}  // namespace muster
