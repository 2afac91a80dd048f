// Checks whether the ps of a fleet have enough memory for a job.
#pragma once

#include <string>

#include "absl/container/btree_map.h"
#include "absl/types/span.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "services/coordinator/membership/lease_table.h"
#include "services/coordinator/scheduling/queue_placement.h"

namespace muster {

// Returns "its shards need up to 1.5 GiB on each of 2 ps with 4 workers".
std::string NeedText(const WaitingJob& job);
// Says that too few of `ps` are large enough, even if they serve no other job.
// Requires: FitOf(job, ps) is kTooLittle.
std::string TooSmallText(const WaitingJob& job, absl::Span<const FreeMembers::Ps> ps);

// Returns a warning with TooSmallText() if the members have too little memory for a job that is
// submitted, or "". Returns "" for an allreduce job.
// Returns "" too if fewer ps are attached than the job needs, because other ps may be larger.
// `members` are those of Fleet::members(). Pure. Makes a plan for a large model, which may take
// some milliseconds: do not call it under a lock.
std::string MemoryWarning(const v1::Job& job, const v1::Graph& graph,
                          const absl::btree_map<std::string, AttachedMember>& members);

}  // namespace muster
