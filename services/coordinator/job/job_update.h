// What may change of a job that was submitted.
#pragma once

#include <array>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Paths of fields of a JobSpec, as in the mask of UpdateJob.
inline constexpr std::array<absl::string_view, 4> kUpdatable = {"priority", "labels", "annotations",
                                                                "checkpoint.keep_last"};

// Gives `to` the field of `from`; `path` is one of kUpdatable. What is unset becomes unset.
void TakeOver(absl::string_view path, const v1::JobSpec& from, v1::JobSpec& to);

// How the fields of kUpdatable differ, as an event of the job tells it; "": not at all. Specs with
// their defaults.
std::string DescribeUpdate(const v1::JobSpec& before, const v1::JobSpec& after);

}  // namespace muster
