// Decides when a job asks for a checkpoint, at which step, and when it asks again.
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

// Shards write periodic checkpoints and the final one without being asked. The job asks for others
// as snapshots, one attempt at a time. The step of an attempt is one at which the workers stand, or
// which they have not reached. Methods that may begin an attempt return true if they did. The
// caller then sends the directives.
//
// Pure: the caller passes the time. Not thread-safe.
class CheckpointPolicy {
 public:
  // How long the job waits for a checkpoint while no shard is written, before it asks again.
  static constexpr absl::Duration kPatience = absl::Seconds(10);
  static constexpr int kFinalAttempts = 3;
  // Attempts to save halted shards before a job that is being stopped gives them up.
  static constexpr int kHaltedAttempts = 3;
  // A job with `checkpoint.every` and without `checkpoint.every_steps` is also saved after each
  // 1/kParts of its steps, but at least kPartsApart after the previous save.
  static constexpr int kParts = 10;
  static constexpr absl::Duration kPartsApart = absl::Seconds(10);

  // `first_snapshot` is the first snapshot id. `committed_step` is the step of the job's last
  // checkpoint, or -1.
  CheckpointPolicy(uint64_t first_snapshot, int64_t committed_step)
      : next_snapshot_(first_snapshot), committed_step_(committed_step) {}

  // The known progress of the job.
  struct Pace {
    int64_t newest_step = 0;  // the largest step that a worker begins next
    double steps_per_second = 0;
    int64_t total_steps = 0;
  };

  // Begins a generation, also one that continues after a restart of the coordinator.
  void Begin(const v1::JobPlan& plan, absl::Time now);
  // Ends the generation: drops the attempt and the wait.
  void Stop();

  int64_t committed_step() const { return committed_step_; }
  bool IsPeriodic(int64_t step, int64_t total_steps) const;
  // Whether a periodic checkpoint was due at or before `step`, and none was committed since.
  bool IsBehind(int64_t step) const {
    return every_steps_ > 0 && step >= every_steps_ &&
           committed_step_ < step / every_steps_ * every_steps_;
  }

  // Whether the running job is to be saved now, by the time since the last save
  // (`checkpoint.every`), or by the steps since then. A failed attempt counts as a save: the next
  // one comes after the same time.
  bool IsDue(const Pace& pace, absl::Time now) const;

  // ---- a checkpoint on demand
  bool asking() const { return snapshot_.has_value(); }
  bool Wants(uint64_t snapshot) const { return snapshot_ && snapshot_->id == snapshot; }
  // Returns the step of the attempt. Requires: asking().
  int64_t asked_step() const { return snapshot_->step; }
  // Returns the id of the first of several attempts at one checkpoint. Requires: asking().
  uint64_t request() const { return snapshot_->request; }
  // Returns why a request failed. OK if it succeeded, still may, or is no longer remembered.
  absl::Status Outcome(uint64_t request) const;
  // Returns the snapshot to request from a member with these shards, or nullopt.
  std::optional<v1::Snapshot> DesiredOf(const absl::btree_set<int>& shards) const;

  // Begins an attempt at the step at which members stand. While they run, the step is a little
  // ahead of them, and further ahead after each miss. Returns false if that step would not be
  // before the end of the job, because the final checkpoint serves then.
  bool Ask(const Pace& pace) { return Ask(pace, /*request=*/0); }
  // Resets the counts of misses and of attempts to save halted shards.
  void ForgetMisses() { misses_ = halted_attempts_ = 0; }
  // A shard has taken its snapshot.
  void Answered(int shard) { snapshot_->answered.insert(shard); }
  // Ends the attempt, because a shard was past the step already or skipped it
  // (ParameterShard::PassOverSnapshots). Begins another attempt at once while the members run.
  bool Missed(const Pace& pace, absl::Time now);

  // ---- a checkpoint for which the members wait
  bool awaiting() const { return awaited_step_.has_value(); }
  // Members stand at `step` until a checkpoint of it is committed. A periodic one comes without an
  // attempt. A restart may have lost it, so Tick() asks for it after kPatience.
  bool Await(int64_t step, int64_t total_steps, absl::Time now);
  // The members continue, or stand at another step.
  void StopAwaiting() { awaited_step_.reset(); }

  // ---- a checkpoint of shards that are halted at `step` and stay there
  bool AskHalted(int64_t step, absl::Time now);
  // Ends a failed attempt: a shard does not hold the step, or no shard was written for kPatience.
  // The next attempt may begin after kPatience.
  void GiveUpHalted(const absl::Status& why, absl::Time now);
  // Gives up an attempt after kPatience without a write. `writing`: as for Tick().
  void TickHalted(bool writing, absl::Time now);
  // Returns why the last of kHaltedAttempts failed. OK while another attempt may succeed. Begin()
  // and ForgetMisses() reset the count.
  absl::Status HaltedOutcome() const;

  // ---- results
  // Returns OK if a shard may be written now. Returns FAILED_PRECONDITION ("STALE_SNAPSHOT") if the
  // snapshot is not wanted any more. Returns INVALID_ARGUMENT ("CHECKPOINT_NOT_DUE") if no
  // checkpoint is due at the step. Errors name `job`.
  absl::Status Admit(const v1::WriteShardHeader& header, int64_t total_steps,
                     const std::string& job) const;
  // Checkpoints after `step` cannot be used any more, so the one of `step` is the last one.
  void FallBackTo(int64_t step) { committed_step_ = step; }
  // Notes a committed checkpoint. Returns true if no later one was committed before.
  bool Committed(int64_t step, absl::Time now);
  // Notes a failed checkpoint. Returns true if the final one has failed kFinalAttempts times. A
  // full disk does not count as a failure, because it may get space again.
  bool Failed(int64_t step, uint64_t snapshot, int64_t total_steps, const absl::Status& why,
              absl::Time now);

  // Begins an attempt if it is time for one. `writing`: the stream of some shard is open.
  // `needs_one`: the job waits for a checkpoint on demand while members run, or one is due.
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

  // These come from the plan.
  int64_t first_step_ = 0;
  int64_t every_steps_ = 0;  // 0: only the final checkpoint
  int64_t round_steps_ = 1;  // local SGD: shards have versions only at the ends of rounds
  absl::Duration every_ = absl::ZeroDuration();  // zero: no checkpoints by time

  uint64_t next_snapshot_;
  int64_t committed_step_;
  std::optional<Attempt> snapshot_;
  std::deque<std::pair<uint64_t, absl::Status>> failures_;  // the last kFailuresHeldMax, by request
  int misses_ = 0;
  int final_failures_ = 0;
  int halted_attempts_ = 0;
  absl::Status halted_fault_;  // why the last failed attempt failed
  std::optional<int64_t> awaited_step_;
  // Start of the wait for awaited_step_ or for halted shards, or the last write or failure since.
  absl::Time awaited_since_;
  absl::Time not_before_ = absl::InfinitePast();  // earliest time of the next attempt
  // Step and time of the last checkpoint that was committed or failed, or of the start of a
  // generation that does not continue in place.
  int64_t attempt_step_ = 0;
  absl::Time attempt_time_ = absl::InfinitePast();
};

}  // namespace muster
