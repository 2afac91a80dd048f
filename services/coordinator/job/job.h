// A training job as a pure state machine (transitions.h). It takes events, and returns durable
// changes and directives.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/coordinator/common/job_phase.h"
#include "services/coordinator/job/checkpoint_policy.h"
#include "services/coordinator/job/job_deadlines.h"
#include "services/coordinator/job/non_finite_watch.h"
#include "services/coordinator/job/outbox.h"
#include "services/coordinator/job/recovery/device_kinds.h"
#include "services/coordinator/job/recovery/exclusion_list.h"
#include "services/coordinator/job/recovery/failure_detector.h"
#include "services/coordinator/job/recovery/job_members.h"
#include "services/coordinator/job/recovery/recovery.h"
#include "services/coordinator/job/recovery/steps_to_train.h"
#include "services/coordinator/job/recovery/warm_up.h"
#include "services/coordinator/job/transitions.h"
#include "services/coordinator/records/metrics_log.h"
#include "services/coordinator/records/step_aggregator.h"

namespace muster {

// Uses no threads, no clock and no RPC. Not thread-safe. Copyable: a caller that must store a
// change before it takes effect changes a copy, stores that, and then keeps it.
//
// The directive for a member follows from the job's state and the member's last report. So lost
// directives are sent again, and reports may repeat.
class Job {
 public:
  // A generation runs at least this long before it is halted for more workers, or to yield some.
  // Workers mostly attach in groups, so the wait saves halts.
  static constexpr absl::Duration kJoinAfter = absl::Seconds(10);
  // A generation runs at least this long before it is halted for missing replicas. This wait is
  // shorter, because a shard without a replica may be lost.
  static constexpr absl::Duration kReplicasJoinAfter = absl::Seconds(2);

  struct Outgoing {
    std::string member;
    v1::Directive directive;  // the sender fills in the term
    std::shared_ptr<const std::string>
        plan;  // for Prepare: the serialized plan, which `directive` lacks
  };
  // The caller carries these out in this order: durable changes first.
  struct Effects {
    // Each with its revision. If empty, the record need not be stored.
    std::vector<v1::JobEvent> events;
    std::vector<StepSummary> steps;
    std::vector<EvaluationSummary> evaluations;
    // All records before this position are known, including those above. Call RecordsDurable() with
    // it when they are on the disk.
    std::optional<RecordsBefore> records;
    std::vector<Outgoing> directives;
    std::vector<absl::Status> checkpoints_failed;  // why each could not be written, for the metrics
    // One for each recovery that began, for the metrics: its reason, and the role of the member
    // that was lost or leaves. nullopt if there is none.
    struct Recovery {
      std::string reason;
      std::optional<v1::Role> lost;
    };
    std::vector<Recovery> recoveries;
  };

  // `record` is as stored. `plan` is the plan of its generation. It may be null if the job is not
  // active. `term` makes snapshot ids unique over restarts. If the job is active, its members have
  // FailureDetector::kRestartGrace to return.
  Job(v1::Job record, std::shared_ptr<const v1::JobPlan> plan, uint64_t term, absl::Time now);

  // Restores the progress from the end of the metrics log.
  void Restore(const MetricsHistory& history);

  const v1::Job& record() const { return record_; }
  v1::JobState state() const { return record_.state(); }
  Stage stage() const;
  JobPhase phase() const { return phase_; }
  // The plan of the present or last generation. null before the first one, and after the end of the
  // job.
  const std::shared_ptr<const v1::JobPlan>& plan() const { return plan_; }
  bool active() const;
  // Whether `member` is in the generation of this active job and is not lost.
  bool Uses(const std::string& member) const;
  bool Wants(uint64_t snapshot) const { return checkpoints_.Wants(snapshot); }
  Effects TakeEffects();

  // ---- the scheduler
  // `trained` is the data of the plan's checkpoint.
  void Schedule(std::shared_ptr<const v1::JobPlan> plan, absl::Time now, TrainedData trained = {});
  using ResumePoint = Recovery::ResumePoint;
  // Whether its ps must keep their shards. False only if the job recovers from a checkpoint.
  // Requires: active().
  bool KeepsShards() const { return state() != v1::RECOVERING || recovery_.carries(); }
  // Whether memory of its ps is reserved for the job. It is, at least until all members have
  // stopped.
  bool HoldsMemory() const { return KeepsShards() || !members_.AllStopped(); }
  // Returns the resume point. Returns nullopt if the job is not RECOVERING, a member has not
  // stopped, the back-off lasts, or records of its steps are not durable yet.
  //
  // It also returns nullopt while the halted shards are saved. For a leaving ps this ends
  // CheckpointPolicy::kPatience after the last write. To stop the job it ends after
  // CheckpointPolicy::kHaltedAttempts failed attempts, except if the job yields: then it has no
  // limit.
  std::optional<ResumePoint> ResumesAt(absl::Time now) const;
  // Returns the time since which only records that are not durable can keep a recovering job from
  // its resume point. A disk may never take these. A time in the future means that a wait that ends
  // by itself, such as the back-off, still lasts.
  absl::Time WaitsForFilesSince() const;
  // Returns the members that have not come back to a restarted coordinator. Empty unless the job
  // runs or prepares, can continue in place without them, and FailureDetector::kReturnTime has
  // passed since the last one came back. Also empty if the job is being suspended. The caller may
  // give these members up before the end of the grace, if it can replace the workers among them.
  std::vector<std::string> MissingSinceRestart(absl::Time now) const;
  // Whether the job can use more workers, and has run long enough to be halted for them.
  bool TakesMoreWorkers(absl::Time now) const;
  // Starts a warm-up of `newcomers` for the next generation with `plan`. See WarmUp.
  void BeginWarmUp(v1::JobPlan plan, const std::vector<std::string>& newcomers, absl::Time now);
  const WarmUp& warm_up() const { return warm_up_; }
  const ExclusionList& exclusions() const { return exclusions_; }
  // Halts the job for a generation with these workers. Requires: TakesMoreWorkers(now).
  void LetWorkersJoin(absl::Time now);
  // Number of workers that the job can release for another job: those above workers.min, if the job
  // can continue with the others in place and its generation has lasted for kJoinAfter. Else 0.
  int WorkersToYield(absl::Time now) const;
  // Halts the job for a generation without its last `workers` workers, which `beneficiary` waits
  // for. Requires: workers is in 1..WorkersToYield(now).
  void YieldWorkers(int workers, const std::string& beneficiary, absl::Time now);
  // Returns the most workers that the next generation may have, see MostWorkers().
  int WorkersMax() const;
  // Whether some shards lack the replica that the job wants, and the job has run long enough to be
  // halted for it.
  bool TakesReplicas(absl::Time now) const;
  // Halts the job for a generation with more replicas. Requires: TakesReplicas(now).
  void LetReplicasJoin(absl::Time now);
  // Returns the first version without a known evaluation.
  int64_t evaluations_before() const { return aggregator_.evaluations_before(); }
  // Notes why a queued or recovering job waits: kWaitsFor... or kMemoryTooSmall. No-op if it is in
  // this phase already. A job that recovers only to be stopped begins to stop.
  void Wait(JobPhase phase, const std::string& message, absl::Time now);
  // Like Wait() with a message that says what the job waits for: `what` completes "waits for". The
  // message of a recovering job names the cause of the recovery first.
  void WaitFor(JobPhase phase, absl::string_view what, absl::Time now);
  // Whether a queued or recovering job has waited for its start_timeout.
  bool WaitsTooLong(absl::Time now) const { return JobDeadlines::WaitsTooLong(record_, now); }
  // Ends the wait for `lacks`, which completes "waits for". A job that never ran fails. Another job
  // is suspended when the state of its shards is in a checkpoint, as by Suspend(). No-op unless
  // WaitsTooLong(now).
  void StopWaiting(const std::string& lacks, absl::Time now);
  // A recovering job yields its workers so that another job can continue. It is stopped as by
  // Suspend(), and queued again. `lacks` completes "waits for". No-op unless the job waits, see
  // Wait().
  void Yield(const std::string& lacks, absl::Time now);
  bool Yields() const;
  // Whether the job recovers only to be stopped. Any number of workers is enough for that.
  bool RecoversToStop() const { return state() == v1::RECOVERING && record_.suspend_requested(); }

  // ---- members
  // Handles a member's report on this job. `report` is null if the member's complete list lacks the
  // job. Also takes reports of workers that warm up.
  void Report(const std::string& member, const v1::JobReport* report, absl::Time now);
  // The member has a new stream: directives that were sent on the old one may be lost.
  void Reattached(const std::string& member);
  // Another process has the member's name now: readmits it.
  void Replaced(const std::string& member) { exclusions_.Readmit(member); }
  // The records before `durable` are on the disk. Workers may forget them, and the job may end.
  void RecordsDurable(const RecordsBefore& durable, absl::Time now);
  void StreamBroken(const std::string& member, absl::Time now);
  // The member drains, and the job continues without it. In place, a worker can go at once. A ps
  // goes when replicas can replace its shards, or when these are in a checkpoint. May repeat.
  void MemberLeaves(const std::string& member, absl::Time now);
  void MemberLost(const std::string& member, const std::string& why, absl::Time now);

  // ---- users. Return FAILED_PRECONDITION with a reason if the state does not allow the call. See
  // JobService.
  absl::Status Cancel(absl::Time now);
  // Suspends at once if nothing needs saving. A job that waits for members saves its halted shards
  // and is suspended then, because its wait may never end.
  absl::Status Suspend(absl::Time now);
  absl::Status Resume(const v1::ResourceSpec* resources, absl::Time now);
  // Takes the fields of `spec` that can change after submission: priority, labels, annotations,
  // checkpoint.keep_last. No-op if none differs.
  void Update(const v1::JobSpec& spec, absl::Time now);
  // Asks for a checkpoint soon. The job commits one of the returned step or of a later one.
  struct CheckpointRequest {
    int64_t step = 0;
    uint64_t request = 0;  // 0: the final checkpoint serves the request
  };
  absl::StatusOr<CheckpointRequest> RequestCheckpoint(absl::Time now);
  // See CheckpointPolicy::Outcome().
  absl::Status OutcomeOf(uint64_t request) const { return checkpoints_.Outcome(request); }

  // ---- checkpoints
  // Returns OK if a shard may be written now. Returns FAILED_PRECONDITION for another generation,
  // an abandoned snapshot, or a job that is not running. Returns INVALID_ARGUMENT if there is no
  // such shard ("SHARD_NOT_FOUND") or no checkpoint is due at the step ("CHECKPOINT_NOT_DUE").
  absl::Status AdmitShard(const v1::WriteShardHeader& header) const;
  // Returns the fingerprint of the data that the workers train on, for the manifest. "": unknown.
  std::string data_fingerprint() const;
  // Returns the member that may write a shard of the plan: its ps. If the job is halted and the ps
  // does not hold the shard, the ps of the replica.
  std::string WriterOf(int shard) const;
  void CheckpointCommitted(const v1::Checkpoint& checkpoint, absl::Time now);
  void CheckpointFailed(int64_t step, uint64_t snapshot, const absl::Status& why, absl::Time now);
  // A member sends its shard instead of writing it itself, and says why. Noted once per member and
  // generation. Requires: AdmitShard() returned OK.
  void ShardSent(const v1::WriteShardHeader& header, absl::Time now);
  // The checkpoint of `step` is damaged and set aside, or cannot be read or set aside now and stays
  // in its place. `what` says why. The checkpoint of `sound_step` is the job's last one now. Call
  // it between two generations.
  enum class Unusable { kDamaged, kUnreadable };
  void CheckpointUnusable(Unusable why, int64_t step, absl::string_view what, int64_t sound_step,
                          absl::Time now);

  // Returns the members of a recovering job that have not stopped yet.
  std::vector<std::string> StoppingMembers() const {
    return state() == v1::RECOVERING ? members_.NotStopped() : std::vector<std::string>();
  }
  // Returns the present trouble with checkpoints or, if there is none, with a worker's program. A
  // program is trouble after kProgramPatience.
  static constexpr absl::Duration kProgramPatience = absl::Minutes(2);
  std::optional<v1::JobTrouble> trouble() const;

  // Returns the timings of the steps, by rank. Empty unless the job is RUNNING.
  std::vector<v1::MemberTiming> Timing() const;
  // Returns the links of the workers, by rank. Empty unless the job is RUNNING.
  std::vector<std::shared_ptr<const v1::MemberLinks>> Links() const;

  // ---- time
  // The time from the last Tick() to `now` does not count. Members that the job waits for get their
  // full time again, and the job's own deadlines move by this time.
  void WentOn(absl::Time now);
  // Checks the deadlines. `writing`: the stream of some shard is open.
  void Tick(bool writing, absl::Time now);

  // Fails the job.
  void Fail(const std::string& reason, const std::string& message, absl::Time now);

 private:
  friend class TransitionsTest;  // pulls every trigger in every stage

  // Returns what to do about the trigger. A pair that cannot happen ends the job.
  Action React(Trigger trigger, absl::Time now);
  void Break(const std::string& invariant, absl::Time now);
  void Enlist(absl::Time now);
  // Handles the loss of decision.LostMember().
  void Lose(const FailureDecision& decision, absl::Time now);
  void Suspect(absl::Time now);
  void NoteStopped(absl::Time now);
  void ActOn(const FailureDecision& decision, absl::Time now);
  void Recover(const FailureDecision& decision, absl::Time now);
  void RollBack(const NotFinite& failure, const FailureDecision& decision, absl::Time now);
  struct Halting {
    bool carries = false;  // as far as is known, the shards continue in place
    absl::Duration backoff = absl::ZeroDuration();
    std::string lost = "";  // the member that was lost or leaves; "" if none
    JobPhase phase = JobPhase::kOther;
  };
  void HaltGeneration(const Halting& halting, const std::string& reason, const std::string& message,
                      absl::Time now);
  void ChangeMembers(const Halting& halting, const std::string& reason, const std::string& message,
                     absl::Time now);
  // Whether the job may be halted now to change its workers.
  bool MayChangeWorkers(absl::Time now) const;
  void LetLeave(absl::Time now);
  void LetHaltedLeave(absl::Time now);
  void SaveHalted(int64_t step, absl::Time now);
  bool IsWaiting() const;
  std::optional<int64_t> StopsHaltedAt() const;
  bool SavesHalted() const;
  void StopHalted(absl::Time now);
  bool IsSaved(int64_t step) const;
  void NoteWhoIsTriedAgain(absl::Time now);
  void CloseRecords(int64_t first_step, absl::Time now);
  void Record(std::vector<StepSummary> steps, std::vector<EvaluationSummary> evaluations,
              absl::Time now);
  void Note(const std::string& reason, const std::string& message, absl::Time now);
  // Notes how many damaged samples the workers of this generation replaced, if any.
  void NoteReplacedSamples(absl::Time now);
  // Ends the wait of a job that stays in its state, and tells users the reason.
  void Tell(const std::string& reason, const std::string& message, absl::Time now);
  void Say(const std::string& reason, const std::string& message, absl::Time now);
  void Move(v1::JobState to, const std::string& reason, const std::string& message, absl::Time now);
  void Send(const std::string& member, v1::Directive directive);
  void ReleaseAll();
  bool HoldsSteps() const;
  void Stop(const std::optional<v1::StopCause>& cause, absl::Time now);
  void Stopped(const std::string& where, absl::Time now);
  void CheckDeadline(absl::Time now);
  void SendDesired(const std::string& name, absl::Time now);
  void SendDesiredToAll(absl::Time now);

  v1::Directive AcknowledgeDirective() const;
  void AcknowledgeToWorkers();
  void FollowStepsMadeAgain(absl::Time now);
  void TakeRecords(const std::string& name, const v1::JobReport& report, absl::Time now);
  bool IsSpare(const std::string& name) const;
  void TakeSnapshots(const std::string& name, const v1::JobReport& report, absl::Time now);
  void ReportOfOutsider(const std::string& name, const v1::JobReport* report, absl::Time now);
  void SendWarmUp(const std::string& name, absl::Time now);

  void Advance(absl::Time now);
  void Complete(absl::Time now);
  bool IsOrigin(int64_t step) const;
  void BeginRunning(absl::Time now);
  void GoOnWithout(const std::string& newcomer, const absl::Status& why, absl::Time now);
  // Leaves out the workers of another kind, or fails a job that has never trained.
  void RefuseOtherKinds(const KindsOfWorkers& kinds, absl::Time now);
  // Notes the device kind that the job computes with from now on.
  void TakeKind(const std::string& kind, absl::Time now);
  CheckpointPolicy::Pace Pace() const;
  void AwaitCheckpoint(int64_t step, absl::Time now);
  std::string WhoOwesSnapshot() const;
  int64_t total_steps() const { return record_.progress().total_steps(); }

  v1::Job record_;
  JobPhase phase_ = JobPhase::kOther;
  std::string cause_;  // of the present state: the message without what the job waits for
  std::shared_ptr<const v1::JobPlan> plan_;
  std::shared_ptr<const std::string> plan_bytes_;  // serialized plan_; null until it is sent
  JobMembers members_;
  Outbox outbox_;
  StepAggregator aggregator_;
  CheckpointPolicy checkpoints_;
  FailureDetector failure_detector_;
  NonFiniteWatch non_finite_;
  Effects effects_;

  Recovery recovery_;
  WarmUp warm_up_;
  ExclusionList exclusions_;
  absl::Time ticked_;  // the time of the last Tick() or WentOn()
  absl::Time running_since_ = absl::InfiniteFuture();
  // Set while a member leaves that the job cannot do without. The member goes after a checkpoint of
  // this step or a later one.
  std::optional<int64_t> leaves_at_;
  // The number of workers that remained when the job was halted to release some. 0: it yielded
  // none.
  int workers_kept_ = 0;
  // The step of a committed checkpoint at which the job is suspended when its records are durable.
  std::optional<int64_t> suspend_at_;
  TrainedData trained_;  // of the present generation, and of those that it continues in place
  bool position_known_ = true;             // false: restored from the log, no report has come since
  bool storage_full_noted_ = false;        // noted since the last checkpoint
  std::optional<v1::JobTrouble> trouble_;  // a checkpoint failed, and none has succeeded since
  absl::btree_set<std::string> senders_noted_;  // members noted by ShardSent() in this generation
};

}  // namespace muster
