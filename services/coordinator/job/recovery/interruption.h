// What lies between two generations of a job: the one is being halted, the next one waits for that.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/coordinator/job/recovery/job_members.h"

namespace muster {

// Whether the shards of the generation go on, or the job goes back to a checkpoint; what is asked
// of members until all of them have stopped; and when the next generation may begin. Outside of an
// interruption what it says is of the last one. Pure; time comes in; not thread-safe.
class Interruption {
 public:
  // The wait before the second recovery in a row that brought no new step; it doubles with each.
  // Where the policy says nothing.
  static constexpr absl::Duration kFirstBackoff = absl::Seconds(1);
  static constexpr absl::Duration kBackoffMax = absl::Seconds(30);
  static constexpr int kMaxRestartsDefault = 10;  // also lib/job's, for jobs of before it

  // Whether the plan's shards may go on in another generation.
  static bool CanCarry(const v1::JobPlan& plan);
  // Whether a job that runs may go on without a member that leaves, in another generation, at the
  // step at which it is: a ps hands its shards over to their backups.
  static bool CanDoWithout(const v1::JobPlan& plan, const JobMembers& members,
                           const std::string& name);
  // One more recovery, of a job that had come to `step`. How many in a row counts from the last one
  // that was followed by a step that nobody had made. Nothing: the policy allows no more.
  static std::optional<v1::JobRecovery> Count(v1::JobRecovery so_far, const v1::RestartSpec& policy,
                                              int64_t step);
  // The recovery that was counted last has come to its end: the job goes on at `first_step`, and
  // had made the steps before `made` as far as anybody told. Nothing where that is known already.
  static void NoteResumption(int64_t first_step, int64_t made, v1::JobRecovery& recovery);
  // How many in a row it allows.
  static int RecoveriesMax(const v1::RestartSpec& policy);
  // How long the recovery that was counted last waits: up to kBackoffMax, or the policy's backoff
  // where that is longer.
  static absl::Duration Backoff(const v1::JobRecovery& recovery, const v1::RestartSpec& policy);

  // `carries`: the shards go on, as far as is known.
  void Begin(bool carries, absl::Duration backoff, absl::Time now);
  // The coordinator was restarted, which may have been in the middle of one. Who halts has until
  // `halting_since` and FailureJudge::kHaltMax.
  void BeginAfterRestart(bool carries, absl::Time halting_since) {
    carries_ = carries;
    halting_since_ = halting_since;
  }
  // Time stood still until `now`: who halts has his time anew.
  void WentOn(absl::Time now) {
    for (absl::Time* const since : {&halting_since_, &stopped_since_}) {
      if (*since != absl::InfiniteFuture()) *since = std::max(*since, now);
    }
  }
  // A ps is gone, with what it alone held.
  void LoseShards() { carries_ = false; }
  // Somebody may have stopped. Once all have, it is known whether the shards go on. Returns whether
  // they do not after all: ps need not hold them, and are to be told.
  bool NoteStopped(const v1::JobPlan& plan, const JobMembers& members, absl::Time now);

  // For sure when all have stopped.
  bool carries() const { return carries_; }
  absl::Time halting_since() const { return halting_since_; }

  // Since when, or from when on, all members have stopped and it is not too early for another
  // attempt; InfiniteFuture: not known.
  absl::Time StandsReadySince(const JobMembers& members) const {
    if (!members.AllStopped()) return absl::InfiniteFuture();
    return std::max(stopped_since_, resumes_not_before_);
  }

  // Where the job goes on.
  struct Resumption {
    // The shards of the plan's generation are to be carried on at first_step. False: from the last
    // checkpoint, or from the beginning.
    bool carries = false;
    int64_t first_step = 0;
    std::vector<v1::PlanShard> shards;  // where they are, see CarriedShards
    absl::Time since;                   // it is known
  };
  // Nothing while members have not stopped, or it is too early for another attempt.
  std::optional<Resumption> ResumesAt(const v1::JobPlan& plan, const JobMembers& members,
                                      absl::Time now) const;
  // What is asked of a member of `plan`'s generation, which is over.
  std::optional<v1::Directive> WantedOf(const JobMembers::Member& member,
                                        const v1::JobPlan& plan) const;

 private:
  bool carries_ = false;
  absl::Time halting_since_ = absl::InfiniteFuture();
  absl::Time stopped_since_ = absl::InfiniteFuture();  // all members
  absl::Time resumes_not_before_ = absl::InfinitePast();
};

}  // namespace muster
