#include "services/coordinator/job/checkpoint_policy.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"
#include "services/coordinator/common/proto_time.h"

namespace muster {
namespace {

// How many failed requests Outcome() remembers. A caller that waits for a checkpoint asks for its
// outcome every second, so a few are enough.
constexpr size_t kFailuresHeldMax = 16;

}  // namespace

void CheckpointPolicy::Begin(const v1::JobPlan& plan, absl::Time now) {
  const v1::SyncSpec& sync = plan.spec().sync();
  first_step_ = plan.first_step();
  every_steps_ = plan.spec().checkpoint().every_steps();
  round_steps_ = sync.mode() == v1::LOCAL_SGD ? std::max<int64_t>(1, sync.every()) : 1;
  every_ = FromProto(plan.spec().checkpoint().every());
  misses_ = final_failures_ = halted_attempts_ = 0;
  // Shards that continue in place have unsaved steps, so the time since their last save goes on.
  if (plan.carries() > 0 && attempt_time_ != absl::InfinitePast()) return;
  attempt_step_ = first_step_;
  attempt_time_ = now;
}

void CheckpointPolicy::Stop() {
  snapshot_.reset();
  awaited_step_.reset();
}

bool CheckpointPolicy::IsPeriodic(int64_t step, int64_t total_steps) const {
  return step > first_step_ &&
         (step == total_steps || (every_steps_ > 0 && step % every_steps_ == 0));
}

bool CheckpointPolicy::IsDue(const Pace& pace, absl::Time now) const {
  if (every_ <= absl::ZeroDuration()) return false;
  const absl::Duration passed = now - attempt_time_;
  if (passed >= every_) return pace.newest_step > attempt_step_;
  const int64_t steps = pace.newest_step - attempt_step_;
  return every_steps_ == 0 && passed >= kPartsApart && steps > 0 &&
         steps >= pace.total_steps / kParts;
}

std::optional<v1::Snapshot> CheckpointPolicy::DesiredOf(const absl::btree_set<int>& shards) const {
  if (!snapshot_ || std::ranges::all_of(shards, [this](int shard) {
        return snapshot_->answered.contains(shard);
      })) {
    return std::nullopt;
  }
  v1::Snapshot wanted;
  wanted.set_snapshot(snapshot_->id);
  wanted.set_step(snapshot_->step);
  return wanted;
}

// `request` is the request of the attempt that this one replaces. 0: starts a new request.
bool CheckpointPolicy::AskAt(int64_t step, uint64_t request) {
  const uint64_t id = next_snapshot_++;
  snapshot_ = Attempt{.id = id, .request = request != 0 ? request : id, .step = step};
  return true;
}

absl::Status CheckpointPolicy::Outcome(uint64_t request) const {
  for (const auto& [failed, why] : failures_) {
    if (failed == request) return why;
  }
  return absl::OkStatus();
}

bool CheckpointPolicy::Ask(const Pace& pace, uint64_t request) {
  if (awaited_step_) return AskAt(pace.newest_step, request);
  const int64_t lead = 2 + std::llround(std::min(1e9, 1.5 * pace.steps_per_second));
  int64_t step = pace.newest_step + (lead << std::min(misses_, 10));
  step = (step + round_steps_ - 1) / round_steps_ * round_steps_;
  return step < pace.total_steps && AskAt(step, request);
}

bool CheckpointPolicy::Missed(const Pace& pace, absl::Time now) {
  const uint64_t request = snapshot_->request;
  snapshot_.reset();
  ++misses_;
  if (!awaited_step_) return Ask(pace, request);
  // The known step of the workers was out of date. Wait for their next reports.
  awaited_step_.reset();
  not_before_ = now + absl::Seconds(1);
  return false;
}

bool CheckpointPolicy::Await(int64_t step, int64_t total_steps, absl::Time now) {
  if (awaited_step_ != step) {
    awaited_step_ = step;
    awaited_since_ = now;
    if (snapshot_ && snapshot_->step != step)
      snapshot_.reset();  // the members do not reach that step
  }
  return !snapshot_ && !IsPeriodic(step, total_steps) && now >= not_before_ && AskAt(step);
}

bool CheckpointPolicy::AskHalted(int64_t step, absl::Time now) {
  if (snapshot_ || now < not_before_) return false;
  awaited_since_ = now;
  ++halted_attempts_;
  halted_fault_ = absl::OkStatus();
  return AskAt(step);
}

void CheckpointPolicy::GiveUpHalted(const absl::Status& why, absl::Time now) {
  snapshot_.reset();
  halted_fault_ = why;
  not_before_ = now + kPatience;
}

void CheckpointPolicy::TickHalted(bool writing, absl::Time now) {
  if (writing) awaited_since_ = now;
  if (!snapshot_ || now - awaited_since_ < kPatience) return;
  GiveUpHalted(absl::DeadlineExceededError(
                   absl::StrCat("no shard was written for ", absl::FormatDuration(kPatience))),
               now);
}

absl::Status CheckpointPolicy::HaltedOutcome() const {
  return halted_attempts_ < kHaltedAttempts ? absl::OkStatus() : halted_fault_;
}

absl::Status CheckpointPolicy::Admit(const v1::WriteShardHeader& header, int64_t total_steps,
                                     const std::string& job) const {
  if (header.snapshot() == 0) {
    if (IsPeriodic(header.step(), total_steps) && header.step() <= total_steps) {
      return absl::OkStatus();
    }
    return WithReason(absl::InvalidArgumentError(
                          absl::StrCat(job, ": no checkpoint is due at step ", header.step())),
                      "CHECKPOINT_NOT_DUE");
  }
  if (Wants(header.snapshot()) && header.step() == snapshot_->step) return absl::OkStatus();
  return WithReason(
      absl::FailedPreconditionError(absl::StrCat(job, ": snapshot ", header.snapshot(), " of step ",
                                                 header.step(), " is not wanted any more")),
      "STALE_SNAPSHOT");
}

bool CheckpointPolicy::Committed(int64_t step, absl::Time now) {
  attempt_step_ = step;
  attempt_time_ = now;
  if (snapshot_ && snapshot_->step <= step) snapshot_.reset();
  if (step < committed_step_) return false;
  committed_step_ = step;
  return true;
}

bool CheckpointPolicy::Failed(int64_t step, uint64_t snapshot, int64_t total_steps,
                              const absl::Status& why, absl::Time now) {
  if (Wants(snapshot)) {
    failures_.emplace_back(snapshot_->request, why);
    if (failures_.size() > kFailuresHeldMax) failures_.pop_front();
    snapshot_.reset();
    halted_fault_ = why;
  }
  not_before_ = now + kPatience;
  awaited_since_ = now;
  attempt_step_ = step;
  attempt_time_ = now;
  const bool can_wait = ReasonOf(why) == "STORAGE_FULL";
  return step == total_steps && !can_wait && ++final_failures_ == kFinalAttempts;
}

bool CheckpointPolicy::Tick(bool writing, bool needs_one, const Pace& pace, absl::Time now) {
  const bool may_ask = !snapshot_ && now >= not_before_;
  if (!awaited_step_) return may_ask && needs_one && Ask(pace);
  if (writing) awaited_since_ = now;
  return may_ask && now - awaited_since_ >= kPatience && AskAt(*awaited_step_);
}

}  // namespace muster
