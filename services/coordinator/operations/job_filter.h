// Which jobs somebody asks for.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/repeated_field.h"
#include "lib/job/labels.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// By states and labels. What a job costs does not depend on how long the question is: it is asked
// of every job while others wait.
class JobFilter {
 public:
  // Any job.
  JobFilter() = default;
  // In one of these states, none: in any. Errors as LabelSelector::Parse().
  static absl::StatusOr<JobFilter> Make(const google::protobuf::RepeatedField<int>& states,
                                        absl::string_view selector);

  bool Matches(const v1::Job& job) const {
    return (states_ == 0 || (states_ >> job.state() & 1) != 0) &&
           selector_.Matches(job.spec().labels());
  }

 private:
  uint64_t states_ = 0;  // a bit for each; none: all
  LabelSelector selector_;
};

}  // namespace muster
