// Selects the jobs that a caller asks for.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/repeated_field.h"
#include "lib/job/labels.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Filters by states and labels. Matches() runs for every job while other calls wait. So its cost
// for the states does not depend on how many states the request names.
class JobFilter {
 public:
  // Matches every job.
  JobFilter() = default;
  // Matches jobs in one of these states, or in any state if there are none. Returns the errors of
  // LabelSelector::Parse().
  static absl::StatusOr<JobFilter> Make(const google::protobuf::RepeatedField<int>& states,
                                        absl::string_view selector);

  bool Matches(const v1::Job& job) const {
    return (states_ == 0 || (states_ >> job.state() & 1) != 0) &&
           selector_.Matches(job.spec().labels());
  }

 private:
  uint64_t states_ = 0;  // a bit for each state; 0: all states
  LabelSelector selector_;
};

}  // namespace muster
