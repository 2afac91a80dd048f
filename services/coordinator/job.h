// One training job's life, as a pure state machine: events in, durable changes and directives out.
//
//   QUEUED -> PREPARING -> RUNNING -> (RECOVERING -> RUNNING)* -> SUCCEEDED | FAILED | CANCELLED
//   QUEUED | PREPARING | RUNNING -> SUSPENDED -> QUEUED
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/coordinator/metrics_log.h"
#include "services/coordinator/progress_ledger.h"

namespace muster {

// Whether the table above has this arrow.
bool CanMove(v1::JobState from, v1::JobState to);
bool IsTerminal(v1::JobState state);

// No threads, no clock, no RPC; not thread-safe. Copyable: a caller that must store a change before
// it counts changes a copy, stores it, and keeps it. What is wanted of a member follows from the
// job's state and the member's last report, so lost directives are sent again and reports may
// repeat.
class Job {
 public:
  static constexpr absl::Duration kResend = absl::Seconds(2);
  static constexpr absl::Duration kRestartGrace = absl::Seconds(30);
  static constexpr absl::Duration kPrepareDeadline = absl::Minutes(10);
  // A member that accuses another is believed after this long: the accused, or its lease, may tell
  // the first cause.
  static constexpr absl::Duration kAccusationSettles = absl::Seconds(2);
  // How long the job waits for a checkpoint that it needs, while nobody writes, before it asks for
  // another.
  static constexpr absl::Duration kCheckpointPatience = absl::Seconds(10);
  static constexpr int kFinalCheckpointAttempts = 3;
  // A loss scale that is too high comes down by 2^10 meanwhile: the cause is another.
  static constexpr int kSkipsAlarming = 10;

  struct Outgoing {
    std::string member;
    v1::Directive directive;  // the term is filled in by who sends it
  };
  // To be carried out in this order: what is durable first.
  struct Effects {
    std::vector<v1::JobEvent>
        events;  // each with its revision; none: the record need not be stored
    std::vector<StepSummary> steps;
    std::vector<EvaluationSummary> evaluations;
    std::vector<Outgoing> directives;
  };

  // `record` as stored. `plan` of its generation; null when it has never had one. `term` makes
  // snapshot ids unique over restarts. Members of a job found in PREPARING or RUNNING have
  // kRestartGrace to come back.
  Job(v1::Job record, std::shared_ptr<const v1::JobPlan> plan, uint64_t term, absl::Time now);

  // Takes up progress where the metrics log ends.
  void Restore(const MetricsHistory& history);

  const v1::Job& record() const { return record_; }
  v1::JobState state() const { return record_.state(); }
  const std::shared_ptr<const v1::JobPlan>& plan() const { return plan_; }
  bool active() const;                         // members are assigned to it
  bool Uses(const std::string& member) const;  // as one of them
  bool Wants(uint64_t snapshot) const { return snapshot_ && snapshot_->id == snapshot; }
  Effects TakeEffects();

  // ---- the scheduler
  void Schedule(std::shared_ptr<const v1::JobPlan> plan, absl::Time now);

  // ---- members
  // What a member says of this job; null: its full list does not have it.
  void Report(const std::string& member, const v1::JobReport* report, absl::Time now);
  // The member's stream is new: whatever was sent before may be lost.
  void Reattached(const std::string& member);
  void MemberLost(const std::string& member, const std::string& why, absl::Time now);

  // ---- users. FAILED_PRECONDITION with a reason where the state does not allow it; see
  // JobService.
  absl::Status Cancel(absl::Time now);
  absl::Status Suspend(absl::Time now);
  absl::Status Resume(const v1::ResourceSpec* resources, absl::Time now);
  // Asks for a checkpoint soon; its step, or a later one, is what will be committed.
  absl::StatusOr<int64_t> RequestCheckpoint(absl::Time now);

  // ---- checkpoints
  // Whether a shard may write this now. FAILED_PRECONDITION: another generation, an abandoned
  // snapshot, not running; INVALID_ARGUMENT: no such shard ("SHARD_NOT_FOUND"), or a step at which
  // none is written ("CHECKPOINT_NOT_DUE").
  absl::Status AdmitShard(const v1::WriteShardHeader& header) const;
  void CheckpointCommitted(const v1::Checkpoint& checkpoint, absl::Time now);
  void CheckpointFailed(int64_t step, uint64_t snapshot, const absl::Status& why, absl::Time now);

  // ---- time. `writing`: some shard's stream is open.
  void Tick(bool writing, absl::Time now);

  // Ends the job for a cause that is not a member's.
  void Fail(const std::string& reason, const std::string& message, absl::Time now);

 private:
  struct Member {
    int rank = -1;                // -1: a ps
    absl::btree_set<int> shards;  // those that own chunks; of a worker only with allreduce
    std::string address;          // of a worker's shard with allreduce, once it is prepared
    bool heard = false;    // has reported at all since this object was made or the job scheduled
    bool serving = false;  // has reported this generation
    v1::MemberJobState state = v1::MEMBER_JOB_STATE_UNSPECIFIED;
    int64_t next_step = 0;
    v1::DatasetFacts dataset;
    v1::Directive::KindCase sent = v1::Directive::KIND_NOT_SET;
    uint64_t sent_snapshot = 0;
    absl::Time sent_time = absl::InfinitePast();
  };
  struct SnapshotAttempt {
    uint64_t id = 0;
    int64_t step = 0;
    absl::btree_set<int> answered;  // shards
  };
  struct Accusation {
    std::string culprit, reporter, reason, message;
    int64_t step = 0;
    absl::Time time;
  };

  void Enlist();
  void Note(const std::string& reason, const std::string& message, absl::Time now);
  void Move(v1::JobState to, const std::string& reason, const std::string& message, absl::Time now);
  void Send(const std::string& member, v1::Directive directive);
  void ReleaseAll();
  bool SuspendsAtSnapshot() const;
  std::optional<v1::Directive> Wanted(const Member& member) const;
  std::optional<v1::Directive> StartDirective() const;
  void SendWanted(const std::string& name, Member& member, absl::Time now);
  void SendWantedToAll(absl::Time now);

  void TakeRecords(const std::string& name, const Member& member, const v1::JobReport& report,
                   absl::Time now);
  void NoteIfNotFinite(const StepSummary& step, absl::Time now);
  void NoteIfSkippedInRow(const StepSummary& step, absl::Time now);
  void TakeFailure(const std::string& name, const v1::MemberError& error, absl::Time now);
  void TakeSnapshots(const v1::JobReport& report, absl::Time now);

  void Advance(absl::Time now);
  void Succeed(absl::Time now);
  void BeginRunning(absl::Time now);
  bool AllWorkersDone() const;
  std::optional<int64_t> StoppedAt() const;
  bool IsPeriodic(int64_t step) const;
  int64_t NewestStep() const;
  void AwaitCheckpoint(int64_t step, absl::Time now);
  void StartSnapshot(int64_t step, absl::Time now);
  void SnapshotMissed(absl::Time now);
  int64_t total_steps() const { return record_.progress().total_steps(); }

  v1::Job record_;
  std::shared_ptr<const v1::JobPlan> plan_;
  absl::btree_map<std::string, Member> members_;
  ProgressLedger ledger_;
  Effects effects_;

  int64_t committed_step_ = -1;          // of record_.checkpoint
  std::optional<int64_t> awaited_step_;  // members stand still until it is committed
  absl::Time awaited_since_;
  std::optional<int64_t> suspend_at_;  // that checkpoint is committed; records are awaited
  std::optional<SnapshotAttempt> snapshot_;
  uint64_t next_snapshot_;
  int snapshots_missed_ = 0;
  int final_failures_ = 0;
  bool nonfinite_noted_ = false;  // in this generation
  bool loss_is_finite_ = true;    // of the last step that was not skipped
  int skips_in_row_ = 0;
  absl::Time snapshot_not_before_ = absl::InfinitePast();
  std::optional<Accusation> accusation_;
  absl::Time grace_until_ = absl::InfiniteFuture();  // for members to come back after a restart
  absl::Time prepare_until_ = absl::InfiniteFuture();
};

}  // namespace muster
