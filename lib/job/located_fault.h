// A fault of a job file together with where it is written.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lib/status/field_fault.h"

namespace muster {

struct LocatedFault {
  std::string place;  // "job.yaml:12" or "--set training.steps"
  FieldFault fault;
};

// INVALID_ARGUMENT with one line per fault, "job.yaml:12: training.step: unknown field", also as
// FieldFaults. Of more than 50 faults the first 50 and how many are left.
absl::Status LocatedFaultsToStatus(const std::vector<LocatedFault>& faults);

}  // namespace muster
