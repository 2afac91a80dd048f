// The decision about a failure, with its outcomes.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "absl/time/time.h"

namespace muster {

// No recovery can help. The job fails, unless the member is a newcomer or was excluded before: then
// the job leaves it out.
struct FailJob {};

// A loss or a gradient of `step` is not finite: see NonFiniteWatch::Rule().
struct NotFinite {
  int64_t step = 0;
  bool because_of_data = false;  // the worker found such values in its samples
};

// Another generation may help. All members remain.
struct EndGeneration {};

// The others continue without the member, which is gone or has dropped the job.
struct LoseMember {
  std::string name;
};

// The others continue without the member, which is alive and may receive directives.
struct LeaveOut {
  std::string name;
  // An excluded member is not in the next generation while others can be.
  std::string why_excluded;
  // How long the exclusion lasts for a ps, and for a worker of a job without warm-ups. Such a
  // member cannot show earlier that it is able. Another worker is excluded until it completes a
  // warm-up. A member that lacked something, such as memory,
  // must not cost a recovery again and again. A slow member may soon be fast enough, so its
  // exclusion is shorter. While it hangs it is not free in any case.
  absl::Duration excluded_for = absl::Hours(1);
  // The member computes other bits than the job: it is excluded while the job has like workers. Its
  // loss does not count against max_restarts, because a job leaves out each such member only once.
  bool is_of_other_kind = false;
};

struct FailureDecision {
  std::string reason;
  std::string message;
  std::variant<FailJob, NotFinite, EndGeneration, LoseMember, LeaveOut> outcome;

  // Returns the member that the job continues without; "" if none.
  std::string LostMember() const {
    if (const auto* gone = std::get_if<LoseMember>(&outcome)) return gone->name;
    if (const auto* left_out = std::get_if<LeaveOut>(&outcome)) return left_out->name;
    return "";
  }
};

}  // namespace muster
