// Determines how many steps a job trains, and checks that its workers see the same data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/coordinator/job/recovery/job_members.h"

namespace muster {

// Returns the job's total number of steps. `committed_step` is the step of the job's last
// checkpoint, or -1. Requires: all workers are prepared, and so have reported their data. Pure.
//
// A plan whose first step equals this number is accepted in two cases: its shards continue in
// place, or the last checkpoint is of that step. The generation then only ends the job.
//
// Returns FAILED_PRECONDITION with one of these reasons:
//   DATASET_MISMATCH  workers see different data
//   DATA_TOO_SMALL    a batch has more samples than the data set
//   DATA_ENDLESS      the length is in epochs, and the data is a stream without end
//   NOTHING_TO_TRAIN  the first step is not before the end of the job
absl::StatusOr<int64_t> StepsToTrain(const v1::JobPlan& plan, const JobMembers& members,
                                     int64_t committed_step);

// Returns how the data of `worker` differs from the data of the workers in `members`, or "".
// Compares with the first worker that has reported its data. `worker` is not in `members`. Pure.
std::string DifferenceOfData(const JobMembers& members, const std::string& worker,
                             const v1::DatasetFacts& facts);

// The data that the parameters were trained on until now.
struct TrainedData {
  std::string fingerprint = {};  // "": unknown, or there are only initial values
  bool is_own = false;  // by this job; otherwise by the job whose checkpoint it started from
};

// Returns the fingerprint of the workers' data, or "" if none has reported one. Requires: the
// workers see the same data.
const std::string& FingerprintOfData(const v1::JobPlan& plan, const JobMembers& members);

// Returns OK if the workers see the data that was trained on before, or if one of the fingerprints
// is "". Returns FAILED_PRECONDITION otherwise: the reason is DATA_CHANGED if the job itself
// trained on other data, and OTHER_DATA if another job did. Pure.
absl::Status CheckSameData(const v1::JobPlan& plan, const JobMembers& members,
                           const TrainedData& trained);

// Returns the newcomers that see other data than all workers of an earlier generation. Empty if the
// latter disagree, or if there are none. Requires: all workers are prepared. Pure.
std::vector<std::string> NewcomersWithOtherData(const JobMembers& members);

}  // namespace muster
