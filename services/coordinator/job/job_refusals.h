// Why a job does not do what users and shards ask of it.
#pragma once

#include "absl/status/status.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// OK where nothing in the job's state is against it; else FAILED_PRECONDITION, with the reason that
// stands at each, and the state in the message. Pure.

// "JOB_FINISHED": nothing becomes of a job that has ended.
absl::Status CheckNotEnded(const v1::Job& record);

// To go on, on other resources where these are not null. "JOB_FINISHED"; "JOB_SUSPENDING": it has
// not stopped yet; "JOB_NOT_SUSPENDED": it goes on already, on its own resources, and is not given
// others meanwhile. OK where it goes on already and nothing else is asked.
absl::Status CheckResumes(const v1::Job& record, const v1::ResourceSpec* resources);

// To make a checkpoint on demand. "JOB_NOT_RUNNING", or it runs to its last one.
absl::Status CheckMakesCheckpoint(const v1::Job& record);

// To take this of a shard of `plan`, which is its generation's, or null once it has ended.
// `is_halted`: it recovers, and the shard is of what it saves meanwhile. "JOB_NOT_RUNNING";
// "STALE_GENERATION"; INVALID_ARGUMENT with "SHARD_NOT_FOUND".
absl::Status CheckTakesShard(const v1::Job& record, const v1::JobPlan* plan, bool is_halted,
                             const v1::WriteShardHeader& header);

}  // namespace muster
