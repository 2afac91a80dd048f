// Every fault of a job spec that can be seen without its data.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "lib/status/field_fault.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// `checkpoint.every` of a job that does not say it.
inline constexpr absl::Duration kCheckpointEveryDefault = absl::Minutes(5);

// Faults by field path ("resources.workers.max", "must be at least min = 4 (is 2)"), in the order
// of the job file; empty when the spec is good. Checks required fields, ranges, limits and
// relations (batch smaller than workers); neither model arguments (BuildModel does) nor data
// (Dataset::Open does).
std::vector<FieldFault> ValidateJobSpec(const v1::JobSpec& spec);

// Warnings about a valid spec: the job can lose more of its training than kCheckpointEveryDefault.
// Returns none for a good spec.
std::vector<std::string> WarningsOf(const v1::JobSpec& spec);

// Fills every default that JobSpec documents, so that nobody else needs to know them. Call after
// validation.
void FillDefaults(v1::JobSpec& spec);

}  // namespace muster
