// What a worker makes of its plan's chunks before it exchanges them.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Whether the chunks cut every parameter (of a local_sgd job: and each of its optimizer slots), in
// order and without gaps, and lie on shards of the plan, which comes from another process.
// INVALID_ARGUMENT names the chunk or parameter.
absl::Status CheckChunks(const v1::JobPlan& plan);

// The chunks in the order in which they are needed: those that a forward reads first come first.
std::vector<int> ChunksByFirstUse(const v1::JobPlan& plan);

}  // namespace muster
