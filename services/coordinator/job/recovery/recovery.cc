#include "services/coordinator/job/recovery/recovery.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lib/job/spec_duration.h"
#include "services/coordinator/job/recovery/shard_inventory.h"

namespace muster {

// All shards need a common version that each can step back to. They have one only if all chunks are
// within a step of each other, at versions to which every worker contributed.
bool Recovery::CanContinueInPlace(const v1::JobPlan& plan) {
  const v1::SyncSpec& sync = plan.spec().sync();
  const bool is_bsp = sync.mode() == v1::BSP || sync.mode() == v1::SYNC_MODE_UNSPECIFIED;
  return is_bsp && sync.backup_workers() == 0;
}

// A worker makes the second step of a generation only after all replicas hold the first one
// (lib/shard/replication/replica_agreement.h).
bool Recovery::CanDoWithout(const v1::JobPlan& plan, const JobMembers& members,
                            const std::string& name) {
  if (!CanContinueInPlace(plan)) return false;
  // The others cannot repeat the last steps without workers that are done.
  if (members.AnyWorkerDone()) return false;
  if (members.at(name).is_worker()) return true;
  const bool all_filled = members.NewestStep() >= plan.first_step() + 2;
  return ShardInventory(plan, members).CanHandOver(name, /*filled_only=*/!all_filled);
}

int Recovery::RecoveriesMax(const v1::RestartSpec& policy) {
  return policy.has_max_restarts() ? policy.max_restarts() : kMaxRestartsDefault;
}

std::optional<v1::JobRecovery> Recovery::Count(v1::JobRecovery so_far,
                                               const v1::RestartSpec& policy, int64_t step) {
  const bool in_row = so_far.count() > 0 && step <= so_far.step();
  so_far.set_in_row(in_row ? so_far.in_row() + 1 : 1);
  so_far.set_step(step);
  so_far.set_count(so_far.count() + 1);
  so_far.clear_resumed_step();
  if (so_far.in_row() > RecoveriesMax(policy)) return std::nullopt;
  return so_far;
}

void Recovery::NoteResumePoint(int64_t first_step, int64_t made, v1::JobRecovery& recovery) {
  if (recovery.has_resumed_step()) return;
  const int64_t again = std::max(recovery.step(), made) - first_step;
  recovery.set_resumed_step(first_step);
  recovery.set_steps_again(recovery.steps_again() + std::max<int64_t>(0, again));
}

absl::Duration Recovery::Backoff(const v1::JobRecovery& recovery, const v1::RestartSpec& policy) {
  if (recovery.in_row() <= 1) return absl::ZeroDuration();
  const absl::Duration first =
      policy.has_backoff() ? SpecDuration(policy.backoff()) : kFirstBackoff;
  if (first == absl::ZeroDuration()) return first;
  return std::min(std::max(kBackoffMax, first), first * std::exp2(recovery.in_row() - 2));
}

void Recovery::Begin(bool carries, absl::Duration backoff, absl::Time now) {
  carries_ = carries;
  halting_since_ = now;
  stopped_since_ = absl::InfiniteFuture();
  resumes_not_before_ = now + backoff;
}

bool Recovery::NoteStopped(const v1::JobPlan& plan, const JobMembers& members, absl::Time now) {
  if (!members.AllStopped()) return false;
  stopped_since_ = std::min(stopped_since_, now);
  if (!carries_ || ShardInventory(plan, members).Carried()) return false;
  carries_ = false;
  return true;
}

std::optional<Recovery::ResumePoint> Recovery::ResumesAt(const v1::JobPlan& plan,
                                                         const JobMembers& members,
                                                         absl::Time now) const {
  if (!members.AllStopped() || now < resumes_not_before_) return std::nullopt;
  ResumePoint resume_point{.since = stopped_since_};
  std::optional<CarriedShards> carried;
  if (carries_) carried = ShardInventory(plan, members).Carried();
  LOG_IF(ERROR, carries_ && !carried) << "no ps holds the shards any more, after NoteStopped()";
  if (!carried) return resume_point;
  resume_point.carries = true;
  resume_point.first_step = carried->first_step;
  resume_point.shards = std::move(carried->shards);
  return resume_point;
}

// A member that has not started has nothing to report and holds nothing, so it is released at once.
// Other members halt first. A ps that is behind prepares this generation first, because it still
// has the shards that continue in place.
std::optional<v1::Directive> Recovery::DesiredOf(const JobMembers::Member& member,
                                                 const v1::JobPlan& plan) const {
  if (member.lost) return std::nullopt;
  v1::Directive release, directive;
  release.mutable_release();
  if (!member.serving) {
    if (member.is_worker() || member.behind == 0) return std::nullopt;
    if (!carries_ || plan.carries() != member.behind) return release;
    directive.mutable_prepare();  // the sender adds the plan
    return directive;
  }
  if (member.state == v1::MEMBER_HALTED && member.has_stopped()) {
    const bool is_needed = member.is_worker() ? !member.leaving : carries_;
    return is_needed ? std::nullopt : std::optional(release);
  }
  const bool not_started =
      member.state == v1::MEMBER_PREPARING && (member.is_worker() || !carries_);
  if (not_started) return release;
  directive.mutable_halt();
  return directive;
}

}  // namespace muster
