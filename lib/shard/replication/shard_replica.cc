#include "lib/shard/replication/shard_replica.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/plan/chunk_check.h"
#include "lib/shard/chunks/plan_credentials.h"

namespace muster {

bool HasReplica(const v1::JobPlan& plan, ShardIndex shard) {
  return plan.shards(ToInt(shard)).has_backup();
}

bool IsReplicated(const v1::JobPlan& plan) {
  return std::ranges::any_of(plan.shards(), &v1::PlanShard::has_backup);
}

absl::Status CheckReplicas(const v1::JobPlan& plan) {
  if (plan.job_number() >= kJobNumbersEnd) {
    return BadPlan(plan, absl::StrCat("job number ", plan.job_number()));
  }
  if (!IsReplicated(plan)) return absl::OkStatus();
  if (plan.spec().resources().ps_replication() < 2) {
    return BadPlan(plan, "replicas of shards in a job without replication");
  }
  const v1::SyncSpec& sync = plan.spec().sync();
  if (sync.mode() > v1::BSP || sync.backup_workers() > 0) {
    return BadPlan(plan, "replicas of shards in a mode other than bsp");
  }
  for (int shard = 0; shard < plan.shards_size(); ++shard) {
    const v1::PlanShard& own = plan.shards(shard);
    if (!own.has_backup()) continue;
    if (own.backup().member().empty() || own.backup().member() == own.member()) {
      return BadPlan(plan, absl::StrCat("the replica of shard ", shard, " of ", own.member(),
                                        " is on '", own.backup().member(), "'"));
    }
  }
  return absl::OkStatus();
}

// The only worker is the shard, which has the samples of the whole batch.
v1::JobPlan PlanOfReplica(const v1::JobPlan& plan, ShardIndex shard) {
  v1::JobPlan view = plan;
  view.set_job_number(SessionOfReplica(plan, shard));
  view.mutable_workers()->DeleteSubrange(1, view.workers_size() - 1);
  v1::PlanWorker& pusher = *view.mutable_workers(0);
  pusher.set_member(plan.shards(ToInt(shard)).member());
  pusher.set_host(plan.shards(ToInt(shard)).host());
  pusher.set_samples(plan.spec().data().batch_size());
  for (v1::PlanShard& other : *view.mutable_shards()) other.clear_backup();
  view.mutable_spec()->mutable_sync()->clear_compression();  // the sum is sent as it is
  view.mutable_spec()->clear_checkpoint();                   // the shard writes the checkpoints
  return view;
}

bool IsOfReplica(const v1::JobPlan& plan) { return IsSessionOfReplica(plan.job_number()); }

}  // namespace muster
