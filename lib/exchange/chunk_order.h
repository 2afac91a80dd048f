// Which chunks of a plan a worker needs first.
#pragma once

#include <vector>

#include "lib/plan/numbers.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// The chunks in the order in which they are needed: those that a forward reads first come first.
std::vector<ChunkId> ChunksByFirstUse(const v1::JobPlan& plan);

}  // namespace muster
