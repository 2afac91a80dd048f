// Checks a plan that came from another process before a shard uses it.
#pragma once

#include "absl/status/status.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Returns INVALID_ARGUMENT (reason "BAD_PLAN") if the plan contradicts itself, exceeds a limit, or
// asks for something that its consistency mode cannot do.
absl::Status CheckPlan(const v1::JobPlan& plan);

}  // namespace muster
