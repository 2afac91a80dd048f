// Draws up the plan of a generation: who computes which samples, who owns which chunks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

struct PlanRequest {
  v1::Job job;  // its generation is the one before
  v1::Graph graph;
  std::vector<v1::Hello> workers;  // by rank
  std::vector<v1::Hello> ps;       // every thread of each becomes a shard; none with allreduce
  std::string restore;             // as in JobPlan
  int64_t first_step = 0;
  // The plan of a halted generation whose shards are carried on: this one has the same chunks.
  // Null: of none.
  std::shared_ptr<const v1::JobPlan> carried;
  std::vector<v1::PlanShard> shards;  // then: where they are
  bool without_new_backups = false;   // no ps has room for them
  bool evaluate_first = false;        // as in JobPlan
};

// Shares of the batch are as even as possible, the remainder goes to the lower ranks. Workers must
// not outnumber the samples of a batch. The session token comes from the system's random source.
//
// Chunks are cut and placed as lib/plan/chunk_placement.h says, by the hosts of workers and ps.
// Shards of ps with larger shares come first, else in the order given: shard 0, which judges steps,
// has chunks whenever any shard has. With allreduce shard r is worker r's, all shares are equal and
// the shards have no address yet. With local_sgd every optimizer slot has the chunks of the values
// again. With ps_replication 2 every shard that has none is given a backup (PlaceBackups), of those
// that are carried on too.
std::shared_ptr<const v1::JobPlan> MakePlan(PlanRequest request);

// By which workers that are to join prepare while the generation of `running` goes on: with the
// shares that its next one is to have. See Rehearsal.
v1::JobPlan RehearsalPlan(const v1::JobPlan& running, const std::vector<v1::Hello>& workers);

}  // namespace muster
