// Selects the lines of a member's log that belong to a job.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace muster::cli {

// Returns `text`, glog lines of `member`, without the lines of jobs other than `job`. A member
// begins each line about a job with the job's id: "big-1: ...", "big-1, generation 2: ...". Lines
// about no job stay. A line without glog's prefix belongs to the line before it.
std::string WithoutOtherJobs(absl::string_view text, absl::string_view job,
                             absl::string_view member);

}  // namespace muster::cli
