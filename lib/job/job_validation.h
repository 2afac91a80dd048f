// Checks a job spec: every fault that can be found without the job's data.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "lib/status/field_fault.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// The default of `checkpoint.every`.
inline constexpr absl::Duration kCheckpointEveryDefault = absl::Minutes(5);

// Returns the faults by field path ("resources.workers.max", "must be at least min = 4 (is 2)"), in
// the order of the job file. Empty if the spec is good. Checks required fields, ranges, limits and
// relations between fields (a batch smaller than the number of workers). Does not check model
// arguments (BuildModel does) or data (CheckDataset does).
std::vector<FieldFault> ValidateJobSpec(const v1::JobSpec& spec);

// Returns warnings about a valid spec, in the order of the job file: its largest number of workers
// is no faster than a smaller one, or it can lose more of its training than
// kCheckpointEveryDefault. Empty if there are none.
std::vector<std::string> WarningsOf(const v1::JobSpec& spec);

// Fills every default that JobSpec documents, so that no other code needs to know the defaults.
// Requires: ValidateJobSpec() found no fault.
void FillDefaults(v1::JobSpec& spec);

}  // namespace muster
