// Makes the plan of a generation: which worker computes which samples, and which shard owns which
// chunks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

struct PlanRequest {
  v1::Job job;  // its generation is the previous one
  v1::Graph graph;
  std::vector<v1::Hello> workers;  // by rank
  std::vector<v1::Hello> ps;       // every thread of each ps becomes a shard; empty with allreduce
  std::string restore;             // as in JobPlan
  int64_t first_step = 0;
  // The plan of a halted generation whose shards continue in place. The new plan has the same
  // chunks. Null: no shard continues.
  std::shared_ptr<const v1::JobPlan> carried;
  std::vector<v1::PlanShard> shards;  // with `carried`: where the shards are
  bool without_new_replicas = false;  // places no new replicas, for lack of memory
  bool evaluate_first = false;        // as in JobPlan
};

// Makes the plan of the next generation of request.job. The batch is shared as evenly as possible;
// the remainder goes to the lower ranks. The session token comes from the system's random source.
// Requires: at least one sample per worker.
//
// Chunks are cut and placed by the hosts of workers and ps, see lib/plan/chunk_placement.h. Shards
// of ps are ordered by share, largest first, otherwise in the order given. So shard 0, which judges
// steps, has chunks if any shard has.
// - allreduce: shard r belongs to worker r, all shares are equal, and shards have no address yet.
// - local_sgd: every optimizer slot has the same chunks as the values.
// - ps_replication 2: every shard without a replica gets one (PlaceReplicas), also shards that
//   continue in place.
std::shared_ptr<const v1::JobPlan> MakePlan(PlanRequest request);

// Returns the plan for a warm-up: joining workers prepare with the shares of the next generation,
// while the generation of `running` continues. See WarmUp.
v1::JobPlan WarmUpPlan(const v1::JobPlan& running, const std::vector<v1::Hello>& workers);

}  // namespace muster
