#include "services/coordinator/operations/submission.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/job/job_validation.h"
#include "lib/limits/limits.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"

namespace muster {

absl::StatusOr<CheckedSpec> CheckSubmission(const v1::JobSpec& spec, const std::string& request_id,
                                            const SpecCheckContext& context) {
  absl::StatusOr<SpecCheck> found = CheckSpec(spec, context);
  if (request_id.size() > limits::kRequestIdBytesMax) {
    std::vector<FieldFault> faults = FaultsOf(found.status());
    if (!found.ok() && faults.empty()) return found.status();  // the caller is gone
    faults.push_back({"request_id", absl::StrCat("must be at most ", limits::kRequestIdBytesMax,
                                                 " bytes (is ", request_id.size(), ")")});
    return FaultsToStatus(faults, found.ok() ? "INVALID_REQUEST" : "INVALID_SPEC");
  }
  RETURN_IF_ERROR(found.status());
  Model& model = found->model;
  CheckedSpec checked{
      .spec = spec,
      .origin = {.restore = std::move(found->restore), .first_step = found->first_step},
      .graph = std::make_shared<const v1::Graph>(std::move(model.graph)),
      .warnings = std::move(found->warnings)};
  FillDefaults(checked.spec);
  if (!model.initial_values.empty()) {
    checked.origin.graph = *checked.graph;
    if (checked.origin.restore.empty()) checked.initial_values = std::move(model.initial_values);
  }
  return checked;
}

}  // namespace muster
