// When a job asks for a checkpoint, at which step, and when it asks again.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Periodic checkpoints and the final one come by themselves: shards know when they are due. Others
// are asked for as snapshots, at a step that the workers either stand at or have not reached yet;
// one attempt at a time. Methods that may begin an attempt return whether they did: the members are
// to be told. Pure; time comes in; not thread-safe.
class CheckpointPolicy {
 public:
  // How long the job waits for a checkpoint that it needs, while nobody writes, before it asks for
  // another.
  static constexpr absl::Duration kPatience = absl::Seconds(10);
  static constexpr int kFinalAttempts = 3;
  // At one of shards that are halted, before a job that is stopped goes without it.
  static constexpr int kHaltedAttempts = 3;
  // Without `checkpoint.every_steps` a job is saved after each such part of its steps, but not
  // sooner than this after the save before.
  static constexpr int kParts = 10;
  static constexpr absl::Duration kPartsApart = absl::Seconds(10);

  // `first_snapshot`: ids count from it. `committed_step`: of the job's last checkpoint; -1: none.
  CheckpointPolicy(uint64_t first_snapshot, int64_t committed_step)
      : next_snapshot_(first_snapshot), committed_step_(committed_step) {}

  // What is known of how far the job is.
  struct Pace {
    int64_t newest_step = 0;  // that anybody begins next
    double steps_per_second = 0;
    int64_t total_steps = 0;
  };

  // A new generation, or one that goes on after a restart.
  void Begin(const v1::JobPlan& plan, absl::Time now);
  // The generation is over: nothing is wanted of it any more.
  void Stop();

  int64_t committed_step() const { return committed_step_; }
  bool IsPeriodic(int64_t step, int64_t total_steps) const;
  // A periodic one was due at `step` or before, and none has been committed since.
  bool IsBehind(int64_t step) const {
    return every_steps_ > 0 && step >= every_steps_ &&
           committed_step_ < step / every_steps_ * every_steps_;
  }

  // Whether the running job is to be saved now, by the time since the last save
  // (`checkpoint.every`), or by the steps since then. A failed attempt counts as a save: the next
  // one comes after the same time.
  bool IsDue(const Pace& pace, absl::Time now) const;

  // ---- one on demand
  bool asking() const { return snapshot_.has_value(); }
  bool Wants(uint64_t snapshot) const { return snapshot_ && snapshot_->id == snapshot; }
  // The step at which it is asked for; only while asking().
  int64_t asked_step() const { return snapshot_->step; }
  // What several attempts at one checkpoint have in common: the first one's id; only while
  // asking().
  uint64_t request() const { return snapshot_->request; }
  // Why none came of a request; OK: it did, or may still, or that was too long ago to be known.
  absl::Status Outcome(uint64_t request) const;
  // What to ask of a member with these shards.
  std::optional<v1::Snapshot> WantedOf(const absl::btree_set<int>& shards) const;

  // At the step at which members stand, or, while they run, a little ahead of them, further after
  // each miss. None if that would be behind the end: the final one will do.
  bool Ask(const Pace& pace) { return Ask(pace, /*request=*/0); }
  // From now on a miss counts as the first, and so does an attempt at what is halted.
  void ForgetMisses() { misses_ = halted_attempts_ = 0; }
  // A shard has taken its snapshot.
  void Answered(int shard) { snapshot_->answered.insert(shard); }
  // A shard was beyond the step already, or has passed it over (ParameterShard::PassOverSnapshots).
  bool Missed(const Pace& pace, absl::Time now);

  // ---- one that the job needs
  bool awaiting() const { return awaited_step_.has_value(); }
  // Members stand still at `step` until it is committed. A periodic one comes by itself; after a
  // restart it may have been lost, which Tick() notices.
  bool Await(int64_t step, int64_t total_steps, absl::Time now);
  // They go on, or stand elsewhere.
  void StopAwaiting() { awaited_step_.reset(); }

  // ---- one of shards that are halted at `step`, and stay there
  bool AskHalted(int64_t step, absl::Time now);
  // The attempt comes to nothing: a shard does not hold the step, or nobody has written for
  // kPatience (`writing`: as below). Another one may be made after kPatience.
  void GiveUpHalted(const absl::Status& why, absl::Time now);
  void TickHalted(bool writing, absl::Time now);
  // Why the last of kHaltedAttempts has come to nothing, as those before it have; OK: it may come
  // to something yet. Counted in each generation, and from ForgetMisses() on.
  absl::Status HaltedOutcome() const;

  // ---- what becomes of them
  // Whether a shard may write this now. FAILED_PRECONDITION (reason "STALE_SNAPSHOT"): not wanted
  // any more; INVALID_ARGUMENT (reason "CHECKPOINT_NOT_DUE"). `job` is named in errors.
  absl::Status Admit(const v1::WriteShardHeader& header, int64_t total_steps,
                     const std::string& job) const;
  // What was committed after `step` cannot be used any more; `step` itself is the last one then.
  void FallBackTo(int64_t step) { committed_step_ = step; }
  // True if no later one has been committed before.
  bool Committed(int64_t step, absl::Time now);
  // True when the final one has failed kFinalAttempts times. A disk that is full is waited for: it
  // does not count.
  bool Failed(int64_t step, uint64_t snapshot, int64_t total_steps, const absl::Status& why,
              absl::Time now);

  // Time has passed. `writing`: some shard's stream is open. `needs_one`: the job waits for one on
  // demand while members run, or one is due.
  bool Tick(bool writing, bool needs_one, const Pace& pace, absl::Time now);

 private:
  struct Attempt {
    uint64_t id = 0;
    uint64_t request = 0;
    int64_t step = 0;
    absl::btree_set<int> answered;  // shards
  };
  bool AskAt(int64_t step, uint64_t request = 0);
  bool Ask(const Pace& pace, uint64_t request);

  // Of the plan.
  int64_t first_step_ = 0;
  int64_t every_steps_ = 0;  // 0: none but the last
  int64_t round_steps_ = 1;  // shards have versions at their ends only (local SGD)
  absl::Duration every_ = absl::ZeroDuration();  // zero: none by time

  uint64_t next_snapshot_;
  int64_t committed_step_;
  std::optional<Attempt> snapshot_;
  std::deque<std::pair<uint64_t, absl::Status>> failures_;  // the last few, by request
  int misses_ = 0;
  int final_failures_ = 0;
  int halted_attempts_ = 0;
  absl::Status halted_fault_;  // of the last one that has failed
  std::optional<int64_t> awaited_step_;
  absl::Time awaited_since_;                      // or since shards that are halted were asked
  absl::Time not_before_ = absl::InfinitePast();  // the next attempt
  // Of the last attempt that ended, or of the first step of what no attempt has saved.
  int64_t attempt_step_ = 0;
  absl::Time attempt_time_ = absl::InfinitePast();
};

}  // namespace muster
