// Checks the sync section of a job spec, and what other sections need of it.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "lib/job/field_checks.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

void CheckSync(const v1::JobSpec& spec, FieldChecks& faults);

// For what reads the whole batch's gradient, of all shards, before any of it is applied: a fault of
// `field` in a mode that has no such steps. `because`: "a trust ratio is of".
void NeedsWholeSteps(const v1::JobSpec& spec, std::string field, absl::string_view because,
                     FieldChecks& faults);

}  // namespace muster
