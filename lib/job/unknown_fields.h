// What a spec holds that this build has no name for.
#pragma once

#include "lib/job/field_checks.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// A fault for every field of a newer client, at the path of the message that holds it: a setting
// that is silently left out trains another job than was asked for.
void CheckUnknownFields(const v1::JobSpec& spec, FieldChecks& faults);

}  // namespace muster
