// Whether a plan that came from another process makes sense to a shard.
#pragma once

#include "absl/status/status.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// INVALID_ARGUMENT, reason "BAD_PLAN": the plan contradicts itself, exceeds a limit, or asks for
// what its consistency mode cannot do.
absl::Status CheckPlan(const v1::JobPlan& plan);

}  // namespace muster
