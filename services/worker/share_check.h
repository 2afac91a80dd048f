// Whether a plan that came from another process makes sense to a worker.
#pragma once

#include "absl/status/status.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// What a worker takes for granted before it builds anything: the plan is good for shards
// (CheckPlan), every sample of a batch is one worker's, sizes that are multiplied stay countable,
// the graph has shapes, and something is trained. A rehearsal needs no session token.
//
// INVALID_ARGUMENT, reason "BAD_PLAN"; the message names the plan, what is wrong in it and where.
absl::Status CheckShare(const v1::JobPlan& plan);

}  // namespace muster
