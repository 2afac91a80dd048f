// What the shards of a plan take of the memory of parameter servers.
#pragma once

#include <string>

#include "absl/container/btree_map.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/coordinator/scheduling/scheduler.h"

namespace muster {

// By ps, to the byte what each reserves when it prepares; empty with allreduce. Looks at every
// chunk once for each shard: not to be called under a lock.
absl::btree_map<std::string, PsMemory> MemoryOfPs(const v1::JobPlan& plan);

}  // namespace muster
