// What a job makes of a failure of one of its members: who is to blame, since which step, and
// whether the others can go on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/coordinator/job/recovery/job_members.h"

namespace muster {

// A member that fails is at fault unless it names another. That one may be dead: its lease, or its
// own report, may tell the first cause, so an accusation is believed only after a while. Members
// that do not come, back after a restart of the coordinator or any further in preparing, fail too.
// Pure; time comes in; not thread-safe.
class FailureJudge {
 public:
  static constexpr absl::Duration kAccusationSettles = absl::Seconds(2);
  static constexpr absl::Duration kRestartGrace = absl::Seconds(30);
  // Who is there comes back in this time, also if he has just begun to back off for
  // limits::kAttachBackoffMax.
  static constexpr absl::Duration kReturnTime = absl::Seconds(5);
  static constexpr absl::Duration kPrepareStallMax = absl::Minutes(10);
  // A worker stops when it next waits for a parameter: within a step.
  static constexpr absl::Duration kHaltMax = absl::Minutes(2);
  // One who has paused waits so long for another one who has not, and all of them for a ps that
  // does not say what becomes of their checkpoint: as for the answers to a step.
  static constexpr absl::Duration kPauseMax = absl::Minutes(10);
  // Whoever was slow is refused for so long, where it cannot rehearse.
  static constexpr absl::Duration kSlowRefused = absl::Minutes(5);

  struct Verdict {
    std::string reason;
    std::string message;
    // The others could go on: it is a member that failed, and not what the job wants of it.
    bool recoverable = false;
    std::string lost = "";  // the member that is gone; "": nobody is
    bool is_there = false;  // all the same, and may hear what it is told
    // Not "": what it could not do. While others can it is not to be of the next generation. A ps,
    // and a worker of a job whose workers do not rehearse, cannot show that it can after all: it is
    // refused for so long. Whoever lacked something, such as memory, is not to cost a recovery
    // every time; whoever was slow may soon be as fast as others (while it still hangs it is not
    // free).
    std::string refusal = "";
    absl::Duration refused_for = absl::Hours(1);
    int64_t step = 0;  // where a member failed, as it says itself
  };

  // The coordinator has just started: members have kRestartGrace to come back. Those of a
  // generation that runs whose link to a ps broke have kReturnTime; who halts ends his links.
  void BeginGrace(absl::Time now) { grace_until_ = now + kRestartGrace; }
  bool gives_grace() const { return grace_until_ != absl::InfiniteFuture(); }
  // Time stood still until `now`: a grace that has begun begins anew.
  void WentOn(absl::Time now) {
    if (gives_grace()) BeginGrace(now);
    if (mute_since_ != absl::InfiniteFuture()) mute_since_ = now;
  }
  // A generation has just been given to its members. Each may take as long as it needs, but no
  // longer than kPrepareStallMax without showing something new.
  void BeginPreparing() { grace_until_ = absl::InfiniteFuture(); }
  // The generation is over: accusations of it are void.
  void Acquit() {
    accusation_.reset();
    mute_since_ = absl::InfiniteFuture();
  }

  // A member has failed. No verdict yet: it accuses another member.
  std::optional<Verdict> Hear(const std::string& name, const v1::MemberError& error,
                              const JobMembers& members, absl::Time now);
  // A member is gone. `step`: the job's progress.
  Verdict Lost(const std::string& name, const std::string& why, const JobMembers& members,
               int64_t step) const;
  // A member's stream has broken, or a ps has lost a member: who is cut off from both, or whose
  // accuser is believed by that, is gone, and his lease need not be awaited.
  std::optional<Verdict> Suspect(const JobMembers& members, int64_t step) const;
  // Time has passed.
  struct Situation {
    bool preparing = false;
    bool pausing = false;    // workers were told to
    int64_t first_step = 0;  // of the generation
    int64_t step = 0;        // the job's progress
    // Somebody who was asked for a checkpoint of the step at which all workers stand, and has not
    // answered, while nobody writes one; "": nobody.
    std::string mute = "";
    int64_t asked_step = 0;
    absl::Time halting_since = absl::InfiniteFuture();
  };
  std::optional<Verdict> Tick(const Situation& situation, const JobMembers& members,
                              absl::Time now);

 private:
  struct Accusation {
    std::string culprit, reporter, reason, message;
    int64_t step = 0;
    absl::Time time;
  };

  std::optional<Accusation> accusation_;  // the first
  absl::Time grace_until_ = absl::InfiniteFuture();
  absl::Time mute_since_ = absl::InfiniteFuture();  // that somebody is
};

}  // namespace muster
