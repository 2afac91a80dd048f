// Checks the sync section of a job spec, and the needs that other sections have of it.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "lib/job/field_checks.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

void CheckSync(const v1::JobSpec& spec, FieldChecks& faults);

// Checks resources.workers.logical, and refuses all settings with which a result would depend on
// the number of workers.
void CheckLogicalWorkers(const v1::JobSpec& spec, FieldChecks& faults);

// Adds a fault of `field` if the mode has no steps over the whole batch (ssp, asp, local_sgd). Call
// for settings that read the whole batch's gradient, of all shards, before any of it is applied.
// `because` is the beginning of the reason, for example "a trust ratio needs".
void NeedsWholeSteps(const v1::JobSpec& spec, std::string field, absl::string_view because,
                     FieldChecks& faults);

}  // namespace muster
