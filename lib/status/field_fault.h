// Reports all faults of a request at once, each with its field path.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace muster {

// One thing wrong with a request: "resources.ps", "must be at least 1 (is 0)".
struct FieldFault {
  std::string field;
  std::string description;
  friend bool operator==(const FieldFault&, const FieldFault&) = default;
};

// Returns INVALID_ARGUMENT with a message that lists every fault, one per line ("field:
// description"), and a google.rpc.BadRequest payload of the faults. `reason` must be
// "INVALID_REQUEST" if the fault is not in a job spec. `faults` must not be empty.
absl::Status FaultsToStatus(const std::vector<FieldFault>& faults,
                            absl::string_view reason = "INVALID_SPEC");

// Returns `status` with the field's path and ": " before the message, and with the old message
// attached as a fault of `field`. Code and reason stay. OK stays OK.
absl::Status AtField(const absl::Status& status, absl::string_view field);

// Returns the faults attached by either function; empty for other statuses.
std::vector<FieldFault> FaultsOf(const absl::Status& status);

}  // namespace muster
