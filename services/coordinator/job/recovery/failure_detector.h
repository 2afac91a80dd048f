// Failure detector of a job: which member is at fault, at which step, and whether the others can
// continue.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/coordinator/job/recovery/failure_decision.h"
#include "services/coordinator/job/recovery/job_members.h"

namespace muster {

// A member that fails is at fault unless it accuses another member. The accused member may be dead,
// and its lease or its own report may then reveal the first cause. So an accusation takes effect
// only after kAccusationSettles. A member also fails if it does not return after a restart of the
// coordinator, or makes no progress in preparing. So does a member that does not pause, halt or
// report on a checkpoint in time.
//
// Pure: the caller passes the time. Not thread-safe.
class FailureDetector {
 public:
  // The time after which an accusation takes effect.
  static constexpr absl::Duration kAccusationSettles = absl::Seconds(2);
  // The time that members have to return after a restart of the coordinator.
  static constexpr absl::Duration kRestartGrace = absl::Seconds(30);
  // A live member reattaches within this time, even if it has just started its longest back-off
  // (limits::kAttachBackoffMax).
  static constexpr absl::Duration kReturnTime = absl::Seconds(5);
  // The longest time without progress in preparing.
  static constexpr absl::Duration kPrepareStallMax = absl::Minutes(10);
  // The longest time from a Halt directive until the member halts. A worker halts when it next
  // waits for a parameter, which is within a step.
  static constexpr absl::Duration kHaltMax = absl::Minutes(2);
  // How long a paused worker waits for one that has not paused. Also how long paused workers wait
  // for a ps that does not report on their checkpoint.
  static constexpr absl::Duration kPauseMax = absl::Minutes(10);
  // How long a slow member stays excluded if it cannot warm up.
  static constexpr absl::Duration kSlowExcluded = absl::Minutes(5);

  // Call this after the coordinator started: members have kRestartGrace to return. In a running
  // generation a member has only kReturnTime if its link to a ps broke. In a halting generation a
  // broken link is no sign of a loss, because a member that halts closes its links.
  void BeginGrace(absl::Time now) { grace_until_ = now + kRestartGrace; }
  bool gives_grace() const { return grace_until_ != absl::InfiniteFuture(); }
  // The time up to `now` does not count: restarts the grace, and the wait for Situation::mute, if
  // they have begun.
  void WentOn(absl::Time now) {
    if (gives_grace()) BeginGrace(now);
    if (mute_since_ != absl::InfiniteFuture()) mute_since_ = now;
  }
  // Call this when a generation starts to prepare: ends the grace. Preparing may take any time, but
  // at most kPrepareStallMax without progress.
  void BeginPreparing() { grace_until_ = absl::InfiniteFuture(); }
  // Resets the detector at the end of a generation: drops the accusation.
  void Reset() {
    accusation_.reset();
    mute_since_ = absl::InfiniteFuture();
  }

  // Handles the failure report of a member. Returns nullopt if it accuses another member.
  std::optional<FailureDecision> OnError(const std::string& name, const v1::MemberError& error,
                                         const JobMembers& members, absl::Time now);
  // Returns the decision for a lost member. `step` is the job's progress.
  FailureDecision Lost(const std::string& name, const std::string& why, const JobMembers& members,
                       int64_t step) const;
  // Call this after a stream broke, a ps lost a link, or an error report gave no decision. Returns
  // a decision if a member without a stream is accused, or if a ps has lost its link to a member
  // without a stream. Does not wait for the lease.
  std::optional<FailureDecision> Suspect(const JobMembers& members, int64_t step) const;
  // The state of the job, for Tick().
  struct Situation {
    bool preparing = false;
    bool pausing = false;    // workers were told to pause
    int64_t first_step = 0;  // of the generation
    int64_t step = 0;        // the job's progress
    // A member that owes an answer about the checkpoint of the step at which all workers stand,
    // while no member writes one. "" if none.
    std::string mute = "";
    int64_t asked_step = 0;
    absl::Time halting_since = absl::InfiniteFuture();
  };
  // Checks the deadlines.
  std::optional<FailureDecision> Tick(const Situation& situation, const JobMembers& members,
                                      absl::Time now);

 private:
  struct Accusation {
    std::string culprit, reporter, reason, message;
    int64_t step = 0;
    absl::Time time;
  };

  std::optional<Accusation> accusation_;  // the first
  absl::Time grace_until_ = absl::InfiniteFuture();
  absl::Time mute_since_ = absl::InfiniteFuture();  // since when Situation::mute is set
};

}  // namespace muster
