// Checks whether the state of a job allows the requests of users and shards.
#pragma once

#include "absl/status/status.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Each returns OK if the job's state allows the request. Otherwise each returns FAILED_PRECONDITION
// with a reason given below, and with the state in the message. Pure.

// "JOB_FINISHED" if the job has ended.
absl::Status CheckNotEnded(const v1::Job& record);

// Checks a resumption, with other resources if `resources` is not null. Also OK if the job is not
// suspended and `resources` asks for no change.
//   JOB_FINISHED       the job has ended
//   JOB_SUSPENDING     the job is being suspended or stopped, and has not stopped yet
//   JOB_NOT_SUSPENDED  the job is not suspended, so its resources cannot change
absl::Status CheckResumes(const v1::Job& record, const v1::ResourceSpec* resources);

// Checks whether a user may request a checkpoint now. "JOB_NOT_RUNNING" if the job is not running
// or is being suspended.
absl::Status CheckMakesCheckpoint(const v1::Job& record);

// Checks the write of a shard of `plan`, the plan of the job's generation, or null after its end.
// `is_halted`: the job recovers and saves its halted shards, of which this is one.
//   JOB_NOT_RUNNING   the job does not run, and `is_halted` is false
//   STALE_GENERATION  the shard is of another generation
//   SHARD_NOT_FOUND   the plan has no such shard; the status is INVALID_ARGUMENT
absl::Status CheckTakesShard(const v1::Job& record, const v1::JobPlan* plan, bool is_halted,
                             const v1::WriteShardHeader& header);

}  // namespace muster
