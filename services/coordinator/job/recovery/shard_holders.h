// What is left of the shards of a halted generation, and where backups of shards go.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/coordinator/job/recovery/job_members.h"

namespace muster {

// The shards that the next generation carries on, and the step from which.
struct CarriedShards {
  int64_t first_step = 0;
  // As in JobPlan: where a shard is gone its backup has its place. A backup that is left stays; it
  // `carries` where it holds first_step.
  std::vector<v1::PlanShard> shards;
};

// Once all members have stopped. Each shard is its ps's, or, where that is lost or does not hold
// it, its backup's. A ps that is leaving hands its shards over to their backups, if all of them are
// on ps that stay and hold them; else it has to stay. first_step is the newest version that all of
// them hold. Where there is one that all backups hold as well it is that. Nothing: somebody's shard
// is gone, or too far from the others. Pure.
std::optional<CarriedShards> ShardsHeld(const v1::JobPlan& plan, const JobMembers& members);

// How ps that are leaving can go though no other generation begins.
struct Departures {
  std::vector<std::string> at_once;  // others hold all that is to be carried on
  // The others, once there is a checkpoint of this version, which lets the whole generation go: of
  // ShardsInPlace().
  std::optional<int64_t> checkpoint_at;
};

// Once all members have stopped. A checkpoint is made only where somebody cannot go without. Pure.
Departures DeparturesOf(const v1::JobPlan& plan, const JobMembers& members);

// Once all members have stopped. As ShardsHeld(), but nobody hands over: each shard is at the ps
// that the plan names, whether that leaves or not, or, where that is gone, at its backup's. They
// may write first_step into a checkpoint. Pure.
std::optional<CarriedShards> ShardsInPlace(const v1::JobPlan& plan, const JobMembers& members);

// Whether ShardsHeld() may come to something: every shard has a ps that is not lost, itself or with
// a backup. `filled_only`: backups that the plan has only just made hold nothing yet.
bool ShardsMayBeHeld(const v1::JobPlan& plan, const JobMembers& members, bool filled_only);

// Whether a ps that is leaving may hand over what it has: each of its shards has a backup on a ps
// that stays. What it has of backups can be made anew. `filled_only`: as above.
bool CanHandOver(const v1::JobPlan& plan, const JobMembers& members, const std::string& ps,
                 bool filled_only);

// Gives every shard of the plan that has no backup one on another of these ps: on another host
// where there is one, on the ps and the thread that have least of backups. Where there is only one
// ps nothing happens. Pure.
void PlaceBackups(const std::vector<v1::Hello>& ps, v1::JobPlan& plan);

// Shards of the plan without a backup, 0 where the job wants none.
int ShardsWithoutBackup(const v1::JobPlan& plan);

}  // namespace muster
