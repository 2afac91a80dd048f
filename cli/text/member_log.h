// Which lines of a member's log are of a job.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace muster::cli {

// `text`, lines of glog's that `member` has logged, without those of jobs other than `job`. A
// member begins each line of a job with the job's id: "big-1: ...", "big-1, generation 2: ...". A
// line of no job stays, and a line without glog's prefix goes with the one before.
std::string WithoutOtherJobs(absl::string_view text, absl::string_view job,
                             absl::string_view member);

}  // namespace muster::cli
