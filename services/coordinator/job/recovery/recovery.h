// Tracks the recovery of a job, from halting one generation to starting the next.
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

// Decides whether the shards continue in place or the job returns to a checkpoint. Also decides
// which directives members get until all have stopped, and when the next generation may begin.
// Between recoveries the accessors describe the last one.
//
// Pure: the caller passes the time. Not thread-safe.
class Recovery {
 public:
  // Default wait before the second recovery in a row without a new step. It doubles with each.
  static constexpr absl::Duration kFirstBackoff = absl::Seconds(1);
  static constexpr absl::Duration kBackoffMax = absl::Seconds(30);
  // Default of max_restarts for jobs that were stored before lib/job filled in the same default.
  static constexpr int kMaxRestartsDefault = 10;

  // Whether the plan's shards can continue in place in another generation.
  static bool CanContinueInPlace(const v1::JobPlan& plan);
  // Whether a running job can continue at its present step without a member that leaves. A new
  // generation starts, and the replicas of a leaving ps take over its shards.
  static bool CanDoWithout(const v1::JobPlan& plan, const JobMembers& members,
                           const std::string& name);
  // Counts one more recovery of a job that had reached `step`. `in_row` restarts at 1 if the job
  // made a new step since the last one. Returns nullopt if the policy allows no more recoveries in
  // a row.
  static std::optional<v1::JobRecovery> Count(v1::JobRecovery so_far, const v1::RestartSpec& policy,
                                              int64_t step);
  // Notes that the recovery that was counted last ended: the job continues at `first_step`.
  // As far as members reported, it had made the steps before `made`. No-op if the recovery has a
  // resume point already.
  static void NoteResumePoint(int64_t first_step, int64_t made, v1::JobRecovery& recovery);
  // Returns how many recoveries in a row the policy allows.
  static int RecoveriesMax(const v1::RestartSpec& policy);
  // Returns how long the recovery that was counted last waits. At most kBackoffMax, or the policy's
  // backoff if that is longer.
  static absl::Duration Backoff(const v1::JobRecovery& recovery, const v1::RestartSpec& policy);

  // Begins a recovery. `carries`: as far as is known, the shards continue in place.
  void Begin(bool carries, absl::Duration backoff, absl::Time now);
  // Begins after a restart of the coordinator, which may have interrupted a recovery. Members must
  // halt before `halting_since` + FailureDetector::kHaltMax.
  void BeginAfterRestart(bool carries, absl::Time halting_since) {
    carries_ = carries;
    halting_since_ = halting_since;
  }
  // The time up to `now` does not count: restarts the time that members have to halt, and the time
  // since all have stopped.
  void WentOn(absl::Time now) {
    for (absl::Time* const since : {&halting_since_, &stopped_since_}) {
      if (*since != absl::InfiniteFuture()) *since = std::max(*since, now);
    }
  }
  // Call this after the loss of a ps that alone held a shard. Also call it when a checkpoint has
  // the shards, so that their ps can leave.
  void LoseShards() { carries_ = false; }
  // Call this when a member may have stopped. When all have stopped, decides whether the shards
  // continue in place. Returns true if this changed from yes to no: release the ps then.
  bool NoteStopped(const v1::JobPlan& plan, const JobMembers& members, absl::Time now);

  // Whether the shards continue in place, as far as is known. Within a recovery this changes only
  // from true to false, and may do so even after all members have stopped.
  bool carries() const { return carries_; }
  absl::Time halting_since() const { return halting_since_; }

  // Returns the time at which all members have stopped and the back-off is over, which may be in
  // the future. InfiniteFuture if a member has not stopped.
  absl::Time StandsReadySince(const JobMembers& members) const {
    if (!members.AllStopped()) return absl::InfiniteFuture();
    return std::max(stopped_since_, resumes_not_before_);
  }

  // The resume point of the job.
  struct ResumePoint {
    // True: the shards of the plan's generation continue in place at first_step. False: the job
    // continues from the last checkpoint, or from the beginning.
    bool carries = false;
    int64_t first_step = 0;
    std::vector<v1::PlanShard> shards;  // the shards and their ps, see CarriedShards
    absl::Time since;                   // when all members had stopped
  };
  // Returns nullopt while members have not stopped, or while the back-off lasts.
  std::optional<ResumePoint> ResumesAt(const v1::JobPlan& plan, const JobMembers& members,
                                       absl::Time now) const;
  // Returns the directive for a member of `plan`'s generation, which is over. nullopt if none.
  std::optional<v1::Directive> DesiredOf(const JobMembers::Member& member,
                                         const v1::JobPlan& plan) const;

 private:
  bool carries_ = false;
  absl::Time halting_since_ = absl::InfiniteFuture();
  absl::Time stopped_since_ = absl::InfiniteFuture();  // when all members had stopped
  absl::Time resumes_not_before_ = absl::InfinitePast();
};

}  // namespace muster
