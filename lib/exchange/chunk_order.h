// The order in which a worker needs the chunks of a plan.
#pragma once

#include <vector>

#include "lib/plan/numbers.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Returns the chunks in the order in which a forward pass reads their parameters.
std::vector<ChunkId> ChunksByFirstUse(const v1::JobPlan& plan);

}  // namespace muster
