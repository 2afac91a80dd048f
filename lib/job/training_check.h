// Checks the training section of a job spec.
#pragma once

#include "lib/job/field_checks.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

void CheckTraining(const v1::JobSpec& spec, FieldChecks& faults);

}  // namespace muster
