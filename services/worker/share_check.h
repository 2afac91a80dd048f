// Validates a plan from the coordinator before a worker uses it.
#pragma once

#include "absl/status/status.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Checks everything that a worker assumes about a plan.
// - The plan is valid for shards (CheckPlan). The plan of a warm-up needs no session token.
// - Every sample of a batch belongs to exactly one worker.
// - Products of sizes do not overflow.
// - The shapes of the graph can be inferred.
// - At least one parameter is trained.
//
// Returns INVALID_ARGUMENT, reason "BAD_PLAN". The message names the plan and the faulty part.
absl::Status CheckShare(const v1::JobPlan& plan);

}  // namespace muster
