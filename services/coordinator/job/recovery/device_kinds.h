// Compares the device kinds of a job's workers (JobReport.device_kind). Only jobs with logical
// workers have them: workers of one kind compute the same bits.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/coordinator/job/recovery/job_members.h"

namespace muster {

// The reason if the workers of a job have different device kinds.
inline constexpr char kDeviceKindsDiffer[] = "DEVICE_KINDS_DIFFER";

// Returns the kind that a worker reported, printable and cut to 1 KiB. A worker may report any
// text.
std::string PrintableKind(absl::string_view reported);

// Returns the words of `kind` that `other` lacks, or all of `kind` if there are none. A kind is a
// list of words with ", " between them.
std::string WordsNotIn(absl::string_view kind, absl::string_view other);

// Returns how two kinds differ: "w-3 computes with 4 threads, the job with 7 threads: bits would
// differ". Returns "" if they are equal, or if one of them is not known (""). `first` and `second`
// are the names in that text.
std::string DifferenceOfKinds(absl::string_view first, absl::string_view kind,
                              absl::string_view second, absl::string_view other);

struct KindsOfWorkers {
  // The kind with which the job can go on: that of the workers that trained last if a worker has
  // it, or else the kind of the first worker that has reported one. "": none has.
  std::string kind;
  std::string first;                // the first worker of that kind
  std::vector<std::string> others;  // the workers of another kind, by rank
};

// `trained` is the kind of the workers that trained last, or "". Pure.
KindsOfWorkers CompareKinds(const JobMembers& members, absl::string_view trained);

}  // namespace muster
