// Checks the model and program sections of a job spec, and what an external model cannot have.
#pragma once

#include "lib/job/field_checks.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Checks only what can be checked without the model. Zoo arguments and ONNX files are checked when
// the model is built.
void CheckModel(const v1::JobSpec& spec, FieldChecks& faults);

}  // namespace muster
