// Whether the chunks of a plan are what shards, workers and checkpoints take for granted.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "lib/status/field_fault.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// INVALID_ARGUMENT, reason "BAD_PLAN"; the message names the plan and its generation before `why`.
absl::Status BadPlan(const v1::JobPlan& plan, absl::string_view why);

// Whether every element of every parameter, and of every slot that is averaged (AveragedSlots), is
// in exactly one chunk; every chunk is on a shard of the plan; slots are cut like their values; and
// all sizes and counts are within their limits. Chunks may come in any order. For plans of another
// process: BadPlan() names chunk and parameter.
absl::Status CheckChunks(const v1::JobPlan& plan);

// A fault of "chunk_bytes" where `graph`, cut as the job says, has more chunks than a plan may.
std::optional<FieldFault> ChunkCountFault(const v1::JobSpec& spec, const v1::Graph& graph);

}  // namespace muster
