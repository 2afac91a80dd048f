// Placement of the replicas of a job's shards.
#pragma once

#include <vector>

#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Gives each shard of the plan that has no replica one on another of these ps. Prefers another
// host, then the ps and the thread with the fewest replica elements. No-op with a single ps. Pure.
void PlaceReplicas(const std::vector<v1::Hello>& ps, v1::JobPlan& plan);

// Returns the number of shards without a replica. 0 if the job wants no replicas.
int ShardsWithoutReplica(const v1::JobPlan& plan);

}  // namespace muster
