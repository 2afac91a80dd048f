// Checks the properties of a plan's chunks that shards, workers and checkpoints rely on.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "lib/status/field_fault.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Returns INVALID_ARGUMENT (reason "BAD_PLAN"). The message names the plan and its generation
// before `why`.
absl::Status BadPlan(const v1::JobPlan& plan, absl::string_view why);

// Checks the chunks of a plan that came from another process:
//
// - Every element of every parameter, and of every averaged slot (AveragedSlots), is in exactly one
//   chunk.
// - Every chunk is on a shard of the plan.
// - Slots are cut like their values.
// - All sizes and counts are within their limits.
//
// Chunks may come in any order. Returns BadPlan() with the chunk and parameter.
absl::Status CheckChunks(const v1::JobPlan& plan);

// Returns a fault of "chunk_bytes" if `graph`, cut as the job says, has more chunks than a plan may
// have.
std::optional<FieldFault> ChunkCountFault(const v1::JobSpec& spec, const v1::Graph& graph);

}  // namespace muster
