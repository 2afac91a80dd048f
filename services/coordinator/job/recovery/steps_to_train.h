// How many steps a job trains.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/coordinator/job/recovery/job_members.h"

namespace muster {

// Up to which step the plan's generation trains, once all of its workers are prepared, and so have
// told what data they see. `committed_step`: of the job's last checkpoint; -1: none. A generation
// that has no step to make may begin all the same where the job has only to end: what its shards
// carry is in no checkpoint yet, or the last checkpoint is of the last step. Pure.
// FAILED_PRECONDITION, with the reason for which the job fails: "DATASET_MISMATCH", workers see
// different data; "DATA_TOO_SMALL", for a batch; "NOTHING_TO_TRAIN", all steps were made before.
absl::StatusOr<int64_t> StepsToTrain(const v1::JobPlan& plan, const JobMembers& members,
                                     int64_t committed_step);

// How the data that a worker has found, who is not of `members`, differ from those that they see,
// as far as they have told; "": they do not.
std::string DifferenceOfData(const JobMembers& members, const std::string& worker,
                             const v1::DatasetFacts& facts);

// The workers who were not of the generation before and see other data than all those do who were;
// nobody where it is not clear who sees the wrong ones. All are prepared.
std::vector<std::string> NewcomersWithOtherData(const JobMembers& members);

}  // namespace muster
