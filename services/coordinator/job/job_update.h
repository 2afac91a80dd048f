// The fields of a job's spec that can change after submission.
#pragma once

#include <array>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Paths of fields of JobSpec, as in the mask of UpdateJob.
inline constexpr std::array<absl::string_view, 4> kUpdatable = {"priority", "labels", "annotations",
                                                                "checkpoint.keep_last"};

// Copies the field `path` of `from` to `to`. A field that is unset in `from` becomes unset.
// Requires: `path` is in kUpdatable.
void TakeOver(absl::string_view path, const v1::JobSpec& from, v1::JobSpec& to);

// Returns the text of an event that lists the differences of the fields in kUpdatable. "" if none.
// Requires: both specs have their defaults filled in.
std::string DescribeUpdate(const v1::JobSpec& before, const v1::JobSpec& after);

}  // namespace muster
