// A fault of a job file, with its place in the file.
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

// Returns INVALID_ARGUMENT with one line per fault, "job.yaml:12: training.step: unknown field",
// also as FieldFaults. More than 50 faults are cut to the first 50 and the number of the others.
absl::Status LocatedFaultsToStatus(const std::vector<LocatedFault>& faults);

}  // namespace muster
