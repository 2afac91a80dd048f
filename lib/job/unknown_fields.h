// Finds fields of a spec that this build does not know.
#pragma once

#include "lib/job/field_checks.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Adds a fault for every field that only a newer client knows, at the path of the message that
// holds it. A setting that is silently ignored would train another job than the user asked for.
void CheckUnknownFields(const v1::JobSpec& spec, FieldChecks& faults);

}  // namespace muster
