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
  std::vector<std::string> workers;  // by rank
  std::vector<v1::Hello> ps;         // in plan order; every thread of each becomes a shard
  std::string restore;               // as in JobPlan
  int64_t first_step = 0;
};

// Shares of the batch are as even as possible, the remainder goes to the lower ranks. Workers must
// not outnumber the samples of a batch. The session token comes from the system's random source.
std::shared_ptr<const v1::JobPlan> MakePlan(PlanRequest request);

}  // namespace muster
