#include "services/coordinator/operations/job_filter.h"

#include "lib/status/status.h"

namespace muster {

absl::StatusOr<JobFilter> JobFilter::Make(const google::protobuf::RepeatedField<int>& states,
                                          absl::string_view selector) {
  JobFilter filter;
  ASSIGN_OR_RETURN(filter.selector_, LabelSelector::Parse(selector));
  for (const int state : states) {
    // Bit 63 stands for all states that only later versions know. No job here has them.
    filter.states_ |= uint64_t{1} << (state >= 0 && state < 63 ? state : 63);
  }
  return filter;
}

}  // namespace muster
