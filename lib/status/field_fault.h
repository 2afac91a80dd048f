// Faults of a request, all at once, each with its field path.
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

// INVALID_ARGUMENT whose message lists every fault, one per line ("field: description"), and that
// carries them as a google.rpc.BadRequest payload. `reason` is "INVALID_REQUEST" where no job spec
// is at fault. `faults` must not be empty.
absl::Status FaultsToStatus(const std::vector<FieldFault>& faults,
                            absl::string_view reason = "INVALID_SPEC");

// `status` of one field: its path and ": " come before the message, code and reason stay. OK stays
// OK.
absl::Status AtField(const absl::Status& status, absl::string_view field);

// The faults of either; empty for other statuses.
std::vector<FieldFault> FaultsOf(const absl::Status& status);

}  // namespace muster
