// Checks the model section of a job spec.
#pragma once

#include "lib/job/field_checks.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Only what can be seen without the model: zoo arguments and ONNX files are checked where they are
// built.
void CheckModel(const v1::JobSpec& spec, FieldChecks& faults);

}  // namespace muster
