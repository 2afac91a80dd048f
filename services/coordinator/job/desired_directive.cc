#include "services/coordinator/job/desired_directive.h"

#include <utility>

#include "absl/container/btree_set.h"
#include "services/coordinator/job/recovery/shard_inventory.h"

namespace muster {
namespace {

// Returns nullopt until every allreduce shard has an address. After a restart of the coordinator
// the addresses come with the reports.
std::optional<v1::Directive> StartDirective(const DirectiveInputs& job) {
  v1::Directive directive;
  v1::Start& start = *directive.mutable_start();
  start.set_total_steps(job.total_steps);
  if (job.plan.spec().sync().mode() != v1::ALLREDUCE) return directive;
  for (const v1::PlanShard& shard : job.plan.shards()) {
    const std::string& address = job.members.at(shard.member()).address;
    if (address.empty()) return std::nullopt;
    start.add_addresses(address);
  }
  return directive;
}

// The shards that a ps writes: its own, and replicas of shards that their own ps no longer holds.
struct ShardsToWrite {
  absl::btree_set<int> all;
  absl::btree_set<int> replicas;
};

// Returns the own shards of the ps while the job runs. A ps of a halted job may lack its own
// shards, and may hold a replica that must be written in place of a lost shard.
ShardsToWrite ShardsWrittenBy(const std::string& name, const DirectiveInputs& job) {
  const absl::btree_set<int>& own = job.members.at(name).shards;
  const auto held = job.state == v1::RECOVERING ? ShardInventory(job.plan, job.members).InPlace()
                                                : std::optional<CarriedShards>();
  if (!held) return {.all = own};
  ShardsToWrite to_write;
  for (int shard = 0; shard < job.plan.shards_size(); ++shard) {
    if (held->shards[shard].member() != name) continue;
    if (job.plan.shards(shard).member() != name) {
      to_write.replicas.insert(shard);
    } else if (!own.contains(shard)) {
      continue;  // no chunks
    }
    to_write.all.insert(shard);
  }
  return to_write;
}

std::optional<v1::Directive> SnapshotDirective(const std::string& name,
                                               const DirectiveInputs& job) {
  if (!job.checkpoints.asking()) return std::nullopt;
  const ShardsToWrite to_write = ShardsWrittenBy(name, job);
  auto snapshot = job.checkpoints.DesiredOf(to_write.all);
  if (!snapshot) return std::nullopt;
  snapshot->mutable_backups()->Add(to_write.replicas.begin(), to_write.replicas.end());
  v1::Directive directive;
  *directive.mutable_snapshot() = *std::move(snapshot);
  return directive;
}

}  // namespace

bool SuspendsAtSnapshot(const v1::JobPlan& plan) {
  const v1::SyncSpec& sync = plan.spec().sync();
  return sync.mode() == v1::SSP || sync.mode() == v1::ASP || sync.mode() == v1::LOCAL_SGD ||
         sync.backup_workers() > 0;
}

std::optional<v1::Directive> DesiredDirective(const std::string& name, const DirectiveInputs& job) {
  const JobMembers::Member& member = job.members.at(name);
  v1::Directive directive;
  if (job.state == v1::PREPARING) {
    if (member.serving) return std::nullopt;
    directive.mutable_prepare();
    return directive;
  }
  if (job.state == v1::RECOVERING) {
    std::optional<v1::Directive> wanted = job.recovery.DesiredOf(member, job.plan);
    return wanted || !member.holds() ? wanted : SnapshotDirective(name, job);
  }
  if (job.state != v1::RUNNING || !member.serving) return std::nullopt;
  if (member.state == v1::MEMBER_PREPARED || member.state == v1::MEMBER_PREPARING) {
    return StartDirective(job);
  }
  if (member.is_worker() && job.suspend_requested && member.state == v1::MEMBER_RUNNING &&
      !SuspendsAtSnapshot(job.plan)) {
    directive.mutable_pause();
    return directive;
  }
  return SnapshotDirective(name, job);
}

}  // namespace muster
