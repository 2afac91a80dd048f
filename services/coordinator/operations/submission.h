// Checks a job spec before it is queued: reports all faults at once, fills in defaults, and
// resolves the origin of its parameters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/admission/spec_check.h"
#include "proto/muster/v1/job.pb.h"
#include "services/coordinator/store/store.h"

namespace muster {

struct CheckedSpec {
  v1::JobSpec spec;                        // defaults filled in
  JobOrigin origin;                        // has a graph if the spec alone does not define it
  std::shared_ptr<const v1::Graph> graph;  // the built model
  // Values by parameter, of a model that brings its own and does not resume; otherwise empty.
  // The caller stores them and names the place in `origin.restore`.
  std::vector<std::vector<float>> initial_values;
  std::vector<std::string> warnings;  // settings that the user may not intend
};

// Like CheckSpec(), and also checks the length of the request id. Returns that fault together with
// those of the spec, or alone with the reason "INVALID_REQUEST".
absl::StatusOr<CheckedSpec> CheckSubmission(const v1::JobSpec& spec, const std::string& request_id,
                                            const SpecCheckContext& context);

}  // namespace muster
