#include "services/coordinator/job/recovery/failure_detector.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace muster {

namespace {

// A process that has lost a device ends, and another one takes its place.
constexpr char kDeviceLost[] = "DEVICE_LOST";
// Reasons of a worker that finds a value that is not finite: see Trainer::Step().
constexpr char kDataNotFinite[] = "DATA_NOT_FINITE";
constexpr char kLossNotFinite[] = "LOSS_NOT_FINITE";

// Whether another process, or another checkpoint, may avoid the failure.
bool IsRecoverable(const v1::MemberError& error) {
  switch (static_cast<absl::StatusCode>(error.code())) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
      return true;
    default:
      // The plan worker replaces a damaged checkpoint by an older one, or knows that there is none.
      return error.reason() == "SHARDS_NOT_HELD" || error.reason() == "CHECKPOINT_DAMAGED";
  }
}

// Whether `text` is an UPPER_CASE word. A member sends it, and it becomes a metric's label.
bool IsReason(const std::string& text) {
  constexpr size_t kBytesMax = 64;
  return !text.empty() && text.size() <= kBytesMax && std::ranges::all_of(text, [](char c) {
    return absl::ascii_isupper(c) || absl::ascii_isdigit(c) || c == '_';
  });
}

// The decision for a live member that the others continue without.
FailureDecision TooSlow(const std::string& reason, const std::string& member, std::string message,
                        std::string why_excluded) {
  return {.reason = reason,
          .message = std::move(message),
          .outcome = LeaveOut{.name = member,
                              .why_excluded = std::move(why_excluded),
                              .excluded_for = FailureDetector::kSlowExcluded}};
}

// Returns the outcome for a failed member that accuses no other one.
decltype(FailureDecision::outcome) OutcomeOf(const std::string& name, const std::string& reason,
                                             const v1::MemberError& error) {
  const bool because_of_data = reason == kDataNotFinite;
  if (because_of_data || reason == kLossNotFinite) {
    return NotFinite{.step = error.step(), .because_of_data = because_of_data};
  }
  if (reason == kDeviceLost) return LoseMember{name};
  if (IsRecoverable(error)) return EndGeneration();
  return FailJob();
}

}  // namespace

std::optional<FailureDecision> FailureDetector::OnError(const std::string& name,
                                                        const v1::MemberError& error,
                                                        const JobMembers& members, absl::Time now) {
  const std::string reason = IsReason(error.reason()) ? error.reason() : "MEMBER_FAILED";
  const bool accuses = error.culprit() != name && members.contains(error.culprit());
  if (!accuses) {
    return FailureDecision{
        .reason = reason,
        .message = absl::StrCat(name, " failed at step ", error.step(), ": ", error.message()),
        .outcome = OutcomeOf(name, reason, error)};
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

FailureDecision FailureDetector::Lost(const std::string& name, const std::string& why,
                                      const JobMembers& members, int64_t step) const {
  step = std::max(members.at(name).next_step, step);
  std::string message = why;
  if (accusation_ && accusation_->culprit == name) {
    step = accusation_->step;
    absl::StrAppend(&message, " (", accusation_->reporter, ": ", accusation_->message, ")");
  } else if (const std::string awaited = members.WhatIsAwaitedOf(name); !awaited.empty()) {
    absl::StrAppend(&message, "; ", awaited);
  }
  return {
      .reason = "MEMBER_LOST",
      .message = absl::StrCat(members.Describe(name), " was lost at step ", step, ": ", message),
      .outcome = LoseMember{name}};
}

std::optional<FailureDecision> FailureDetector::Suspect(const JobMembers& members,
                                                        int64_t step) const {
  if (accusation_ && !members.at(accusation_->culprit).has_stream) {
    return Lost(accusation_->culprit, "its stream broke", members, step);
  }
  const std::string* const lost = members.FirstLostByAll();
  if (lost == nullptr) return std::nullopt;
  return Lost(*lost, "its stream broke, and so did its link to a ps", members, step);
}

std::optional<FailureDecision> FailureDetector::Tick(const Situation& situation,
                                                     const JobMembers& members, absl::Time now) {
  if (accusation_ && now - accusation_->time >= kAccusationSettles) {
    const Accusation& a = *accusation_;
    return FailureDecision{
        .reason = a.reason,
        .message = absl::StrCat(members.Describe(a.culprit), " is at fault at step ", a.step,
                                ", says ", a.reporter, ": ", a.message),
        .outcome = EndGeneration()};
  }
  const bool runs = !situation.preparing && situation.halting_since == absl::InfiniteFuture();
  if (now >= grace_until_ - kRestartGrace + kReturnTime && runs) {
    if (const std::string* gone = members.FirstSilentCutOff()) {
      return Lost(
          *gone, "it did not come back after the coordinator's restart, and its link to a ps broke",
          members, situation.step);
    }
  }
  if (now >= grace_until_) {
    // One decision per tick: the next ticks return the other silent members.
    if (const std::vector<std::string> silent = members.Silent(); !silent.empty()) {
      return Lost(silent.front(),
                  absl::StrCat("it did not come back within ", absl::FormatDuration(kRestartGrace),
                               " after the coordinator's restart"),
                  members, situation.step);
    }
    grace_until_ = absl::InfiniteFuture();
  }
  if (situation.preparing) {
    if (const std::string* stalled = members.FirstStalled(now - kPrepareStallMax)) {
      return TooSlow(
          "PREPARE_TIMEOUT", *stalled,
          absl::StrCat(members.Describe(*stalled), " is not ready for step ", situation.first_step,
                       " and has shown no progress for ", absl::FormatDuration(kPrepareStallMax)),
          absl::StrCat("it has shown no progress for ", absl::FormatDuration(kPrepareStallMax)));
    }
  }
  if (situation.pausing) {
    if (const std::string* busy = members.FirstNotPaused(now - kPauseMax)) {
      return TooSlow(
          "HALT_TIMEOUT", *busy,
          absl::StrCat(members.Describe(*busy), " did not pause, and others have waited for ",
                       absl::FormatDuration(kPauseMax), "; the job continues without it"),
          absl::StrCat("it did not pause for ", absl::FormatDuration(kPauseMax)));
    }
  }
  mute_since_ = situation.mute.empty() ? absl::InfiniteFuture() : std::min(mute_since_, now);
  if (now - mute_since_ >= kPauseMax) {
    return TooSlow(
        "HALT_TIMEOUT", situation.mute,
        absl::StrCat(members.Describe(situation.mute), " was asked for a checkpoint of ",
                     situation.asked_step,
                     ", the step at which the workers stand, and has neither made one nor refused "
                     "for ",
                     absl::FormatDuration(kPauseMax), "; the job continues without it"),
        absl::StrCat("it did not report on a checkpoint for ", absl::FormatDuration(kPauseMax)));
  }
  if (situation.halting_since + kHaltMax <= now) {
    if (const std::vector<std::string> busy = members.NotStopped(); !busy.empty()) {
      return TooSlow("HALT_TIMEOUT", busy.front(),
                     absl::StrCat(members.Describe(busy.front()), " was told to halt ",
                                  absl::FormatDuration(kHaltMax),
                                  " ago and has not halted; the job continues without it"),
                     absl::StrCat("it did not halt for ", absl::FormatDuration(kHaltMax)));
    }
  }
  return std::nullopt;
}

}  // namespace muster
