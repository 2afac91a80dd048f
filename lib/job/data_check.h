// Checks the data section of a job spec, and the batch against the workers.
#pragma once

#include "lib/job/field_checks.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Opens no file; CheckDataset() checks the files.
void CheckData(const v1::JobSpec& spec, FieldChecks& faults);

}  // namespace muster
