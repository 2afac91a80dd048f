// The shard inventory of a halted generation, and the placement of replicas.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/coordinator/job/recovery/job_members.h"

namespace muster {

// The shards that the next generation continues in place, and its first step.
struct CarriedShards {
  int64_t first_step = 0;
  // The shards in the format of JobPlan. The replica of a lost shard takes its place. Other
  // replicas stay, except those on a ps that is lost or leaves. A replica has `carries` set if it
  // holds first_step.
  std::vector<v1::PlanShard> shards;
};

// Returns the shards that can continue in place. Returns nullopt if no ps holds some shard, or if
// the shards have no common version. Requires: all members have stopped. Pure.
//
// A shard stays on its ps. If the ps is lost or does not hold it, the replica takes its place. A
// leaving ps hands its shards over if all of their replicas are on ps that stay and hold them.
// Otherwise it must stay. first_step is the newest version that all shards and all filled replicas
// hold. If there is none, it is the newest version that all shards hold.
std::optional<CarriedShards> ShardsHeld(const v1::JobPlan& plan, const JobMembers& members);

// How leaving ps can go before another generation begins.
struct Departures {
  std::vector<std::string> at_once;  // ps that may go now: other ps hold all shards
  // The version that must be saved before the other ps can leave. It is that of ShardsInPlace().
  // The checkpoint lets the whole generation go, so at_once is empty then.
  std::optional<int64_t> checkpoint_at;
};

// Asks for a checkpoint only if a leaving ps cannot go without one. Requires: all members have
// stopped. Pure.
Departures DeparturesOf(const v1::JobPlan& plan, const JobMembers& members);

// Like ShardsHeld(), but leaving ps hand nothing over: each shard is on its ps in the plan, or on
// its replica's ps if the former does not hold it. These ps can write a checkpoint of first_step.
// Requires: all members have stopped. Pure.
std::optional<CarriedShards> ShardsInPlace(const v1::JobPlan& plan, const JobMembers& members);

// Whether ShardsHeld() may succeed: the ps of each shard or of its replica is not lost.
// `filled_only`: ignores replicas that this generation has to fill, because they may still be
// empty. Pure.
bool ShardsMayBeHeld(const v1::JobPlan& plan, const JobMembers& members, bool filled_only);

// Whether a leaving ps may hand its shards over: each has a replica on a ps that stays. The
// replicas on the leaving ps do not matter, because they can be created again. `filled_only`: see
// ShardsMayBeHeld(). Pure.
bool CanHandOver(const v1::JobPlan& plan, const JobMembers& members, const std::string& ps,
                 bool filled_only);

// Gives each shard of the plan that has no replica one on another of these ps. Prefers another
// host, then the ps and the thread with the fewest replica elements. No-op with a single ps. Pure.
void PlaceReplicas(const std::vector<v1::Hello>& ps, v1::JobPlan& plan);

// Returns the number of shards without a replica. 0 if the job wants no replicas.
int ShardsWithoutReplica(const v1::JobPlan& plan);

}  // namespace muster
