#include "services/coordinator/failure_judge.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster {

std::optional<FailureJudge::Verdict> FailureJudge::Hear(const std::string& name,
                                                        const v1::MemberError& error,
                                                        const JobMembers& members, absl::Time now) {
  const std::string reason = error.reason().empty() ? "MEMBER_FAILED" : error.reason();
  const bool accuses = error.culprit() != name && members.contains(error.culprit());
  if (!accuses) {
    return Verdict{reason,
                   absl::StrCat(name, " failed at step ", error.step(), ": ", error.message())};
  }
  if (!accusation_) {
    accusation_ = Accusation{.culprit = error.culprit(),
                             .reporter = name,
                             .reason = reason,
                             .message = error.message(),
                             .step = error.step(),
                             .time = now};
  }
  return std::nullopt;
}

FailureJudge::Verdict FailureJudge::Lost(const std::string& name, const std::string& why,
                                         const JobMembers& members, int64_t step) const {
  step = std::max(members.at(name).next_step, step);
  std::string message = why;
  if (accusation_ && accusation_->culprit == name) {
    step = accusation_->step;
    absl::StrAppend(&message, " (", accusation_->reporter, ": ", accusation_->message, ")");
  }
  return {"MEMBER_LOST", absl::StrCat(name, " was lost at step ", step, ": ", message)};
}

std::optional<FailureJudge::Verdict> FailureJudge::Tick(const Situation& situation,
                                                        const JobMembers& members, absl::Time now) {
  if (accusation_ && now - accusation_->time >= kAccusationSettles) {
    const Accusation& a = *accusation_;
    return Verdict{a.reason, absl::StrCat(a.culprit, " is at fault at step ", a.step, ", says ",
                                          a.reporter, ": ", a.message)};
  }
  if (now >= grace_until_) {
    grace_until_ = absl::InfiniteFuture();
    if (const std::string* silent = members.FirstSilent()) {
      return Lost(*silent,
                  absl::StrCat("it did not come back within ", absl::FormatDuration(kRestartGrace),
                               " after the coordinator's restart"),
                  members, situation.step);
    }
  }
  if (situation.preparing) {
    if (const std::string* stalled = members.FirstStalled(now - kPrepareStallMax)) {
      return Verdict{
          "PREPARE_TIMEOUT",
          absl::StrCat(*stalled, " is not ready for step ", situation.first_step,
                       " and has shown no progress for ", absl::FormatDuration(kPrepareStallMax))};
    }
  }
  return std::nullopt;
}

}  // namespace muster
