// Computes the ps memory that the shards of a plan need.
#pragma once

#include <string>

#include "absl/container/btree_map.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/coordinator/scheduling/queue_placement.h"

namespace muster {

// Returns for each ps the exact number of bytes that it reserves when it prepares `plan`. Empty for
// an allreduce plan. Visits every chunk once per shard, so do not call it under a lock. Pure.
absl::btree_map<std::string, PsMemory> MemoryOfPs(const v1::JobPlan& plan);

}  // namespace muster
