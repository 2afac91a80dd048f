// One training job's life, as a pure state machine (job_state.h): events in, durable changes and
// directives out.
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
#include "services/coordinator/job/checkpoint_policy.h"
#include "services/coordinator/job/job_deadlines.h"
#include "services/coordinator/job/non_finite_watch.h"
#include "services/coordinator/job/recovery/failure_judge.h"
#include "services/coordinator/job/recovery/interruption.h"
#include "services/coordinator/job/recovery/job_members.h"
#include "services/coordinator/job/recovery/rehearsal.h"
#include "services/coordinator/records/metrics_log.h"
#include "services/coordinator/records/progress_ledger.h"

namespace muster {

// No threads, no clock, no RPC; not thread-safe. Copyable: a caller that must store a change before
// it counts changes a copy, stores it, and keeps it. What is wanted of a member follows from the
// job's state and the member's last report, so lost directives are sent again and reports may
// repeat.
class Job {
 public:
  // The reason of a job that is told what it waits for, see Wait().
  static constexpr char kWaitsForMembers[] = "WAITS_FOR_MEMBERS";
  // And of one that is halted for workers who have rehearsed.
  static constexpr char kWorkersJoin[] = "WORKERS_JOIN";
  static constexpr char kWorkersYield[] = "WORKERS_YIELD";
  // A generation runs so long before it is halted for more workers: who comes, mostly comes with
  // others.
  static constexpr absl::Duration kJoinAfter = absl::Seconds(10);
  // And so long before it is halted for backups that it should have: as long as it has none, it may
  // lose more.
  static constexpr absl::Duration kBackupsJoinAfter = absl::Seconds(2);

  struct Outgoing {
    std::string member;
    v1::Directive directive;                  // the term is filled in by who sends it
    std::shared_ptr<const std::string> plan;  // a Prepare's, serialised: it has none itself
  };
  // To be carried out in this order: what is durable first.
  struct Effects {
    std::vector<v1::JobEvent>
        events;  // each with its revision; none: the record need not be stored
    std::vector<StepSummary> steps;
    std::vector<EvaluationSummary> evaluations;
    // With the records above all before these are known: RecordsDurable() is to be called with this
    // once they are on the disk.
    std::optional<RecordsBefore> records;
    std::vector<Outgoing> directives;
    std::vector<absl::Status> checkpoints_failed;  // why each could not be written: to be counted
    // Likewise, each time that it began to recover: why, and what the member is that was lost, or
    // leaves; nullopt: none is.
    struct Recovery {
      std::string reason;
      std::optional<v1::Role> lost;
    };
    std::vector<Recovery> recoveries;
  };

  // `record` as stored. `plan` of its generation; null when it has never had one. `term` makes
  // snapshot ids unique over restarts. Members of a job found active have
  // FailureJudge::kRestartGrace to come back.
  Job(v1::Job record, std::shared_ptr<const v1::JobPlan> plan, uint64_t term, absl::Time now);

  // Takes up progress where the metrics log ends.
  void Restore(const MetricsHistory& history);

  const v1::Job& record() const { return record_; }
  v1::JobState state() const { return record_.state(); }
  // Of the present generation, or the last one; null once the job has ended.
  const std::shared_ptr<const v1::JobPlan>& plan() const { return plan_; }
  bool active() const;
  // As one of them, and not as one that was lost.
  bool Uses(const std::string& member) const;
  bool Wants(uint64_t snapshot) const { return checkpoints_.Wants(snapshot); }
  Effects TakeEffects();

  // ---- the scheduler
  void Schedule(std::shared_ptr<const v1::JobPlan> plan, absl::Time now);
  using Resumption = Interruption::Resumption;
  // Its ps hold what it goes on with: those of an active job do, but not of one that recovers from
  // a checkpoint.
  bool KeepsShards() const { return state() != v1::RECOVERING || interruption_.carries(); }
  // Its ps have memory for it: until they have halted, whatever it goes on with.
  bool HoldsMemory() const { return KeepsShards() || !members_.AllStopped(); }
  // Nothing while the job is not RECOVERING, its members have not stopped, or it is too early for
  // another attempt. Nor while what its shards hold is being saved: for a ps that leaves, which
  // takes no longer than somebody writes, and CheckpointPolicy::kPatience; or for the job to be
  // stopped there, which it is after CheckpointPolicy::kHaltedAttempts at the latest.
  std::optional<Resumption> ResumesAt(absl::Time now) const;
  // Since when nothing but its own files, which a disk may never take, can keep a recovering job
  // from that; in the future: all else, which comes to an end, may.
  absl::Time WaitsForFilesSince() const;
  // The members that have not come back to a restarted coordinator, if the job runs or prepares,
  // goes on where it is without them, and FailureJudge::kReturnTime has passed since another one
  // came back. With others in the places of the workers the rest of the grace need not be awaited.
  std::vector<std::string> MissingSinceRestart(absl::Time now) const;
  // Whether it would gain by more workers, and has run for long enough to be interrupted for them.
  bool TakesMoreWorkers(absl::Time now) const;
  // These are to prepare for its next generation by this plan of theirs, while it runs. See
  // Rehearsal.
  void Rehearse(v1::JobPlan plan, const std::vector<std::string>& newcomers, absl::Time now);
  const Rehearsal& rehearsal() const { return rehearsal_; }
  // Halts it for its next generation, which is to have them.
  void LetWorkersJoin(absl::Time now);
  // Number of workers that the job can release for another job: those above workers.min, if the job
  // can continue with the others in place and its generation has lasted for kJoinAfter. Else 0.
  int WorkersToYield(absl::Time now) const;
  // Halts the job for a generation without its last `workers` workers, which `beneficiary` waits
  // for. Requires: workers is in 1..WorkersToYield(now).
  void YieldWorkers(int workers, const std::string& beneficiary, absl::Time now);
  // Number of workers that the next generation has at most, or the spec's maximum.
  int WorkersMax() const;
  // Whether some of its shards have no backup though they should, and it has run for long enough to
  // be interrupted for them.
  bool TakesBackups(absl::Time now) const;
  // Halts it for its next generation, which is to have them.
  void LetBackupsJoin(absl::Time now);
  // The first version whose evaluation is not known.
  int64_t evaluations_before() const { return ledger_.evaluations_before(); }
  // What a queued or recovering job waits for; nothing happens if it is told so already.
  void Wait(const std::string& reason, const std::string& message, absl::Time now);
  // The same; `what` is a sentence's end. Of a recovering job it is told after what has happened to
  // it.
  void WaitFor(const std::string& reason, absl::string_view what, absl::Time now);
  // A queued or recovering job has waited for as long as its spec lets it.
  bool WaitsTooLong(absl::Time now) const { return JobDeadlines::WaitsTooLong(record_, now); }
  // It is not waited any longer for what it `lacks` (a sentence's end): a job that has never run
  // has failed, another is suspended, as soon as what its shards hold is in a checkpoint, as
  // Suspend() has it.
  void StopWaiting(const std::string& lacks, absl::Time now);
  // A recovering job, which Wait() has told that it `lacks` something (a sentence's end), lets its
  // workers go, so that another one can go on: it is stopped as by Suspend(), and queued again.
  void GiveWay(const std::string& lacks, absl::Time now);
  bool GivesWay() const;
  // Whether the job recovers only to be stopped: any number of workers will do for that.
  bool RecoversToStop() const { return state() == v1::RECOVERING && record_.suspend_requested(); }
  // There is nobody to recover a job with that recovers only to be stopped; Wait() has told it.
  // Where what its shards hold can be saved as they are, that is waited for; else they are let go,
  // and it stops with the checkpoint that it has.
  void StopWithoutRecovering(absl::Time now);

  // ---- members
  // What a member says of this job; null: its full list does not have it. Also of one that
  // rehearses.
  void Report(const std::string& member, const v1::JobReport* report, absl::Time now);
  // The member's stream is new: whatever was sent before may be lost.
  void Reattached(const std::string& member);
  // Another process has the member's name now: what was known of the one before is void.
  void Replaced(const std::string& member) { rehearsal_.Forgive(member); }
  // What workers have told is safe: they may forget it, and the job may end.
  void RecordsDurable(const RecordsBefore& durable, absl::Time now);
  void StreamBroken(const std::string& member, absl::Time now);
  // It wants to end: the job goes on without it, with workers at once, with ps as soon as the
  // backups of their shards can have their places or there is a checkpoint of what they hold. May
  // be said again.
  void MemberLeaves(const std::string& member, absl::Time now);
  void MemberLost(const std::string& member, const std::string& why, absl::Time now);

  // ---- users. FAILED_PRECONDITION with a reason where the state does not allow it; see
  // JobService.
  absl::Status Cancel(absl::Time now);
  // At once where nothing is to be saved. A job that waits for members is suspended where its
  // shards stand, once they are in a checkpoint: it may wait for ever, and its own are wanted
  // elsewhere.
  absl::Status Suspend(absl::Time now);
  absl::Status Resume(const v1::ResourceSpec* resources, absl::Time now);
  // Takes over what of `spec` may change of a job that was submitted: priority, labels,
  // annotations, checkpoint.keep_last. Nothing happens where that is what it has.
  void Update(const v1::JobSpec& spec, absl::Time now);
  // Asks for a checkpoint soon; its step, or a later one, is what will be committed.
  struct CheckpointRequest {
    int64_t step = 0;
    uint64_t request = 0;  // 0: the final checkpoint will do
  };
  absl::StatusOr<CheckpointRequest> RequestCheckpoint(absl::Time now);
  // See CheckpointPolicy::Outcome().
  absl::Status OutcomeOf(uint64_t request) const { return checkpoints_.Outcome(request); }

  // ---- checkpoints
  // Whether a shard may write this now. FAILED_PRECONDITION: another generation, an abandoned
  // snapshot, not running; INVALID_ARGUMENT: no such shard ("SHARD_NOT_FOUND"), or a step at which
  // none is written ("CHECKPOINT_NOT_DUE").
  absl::Status AdmitShard(const v1::WriteShardHeader& header) const;
  // Who may write a shard of the plan: its ps, or, where that is gone and the job halted, the one
  // that has its backup.
  std::string WriterOf(int shard) const;
  void CheckpointCommitted(const v1::Checkpoint& checkpoint, absl::Time now);
  void CheckpointFailed(int64_t step, uint64_t snapshot, const absl::Status& why, absl::Time now);
  // A member that was to write its shard itself sends it, and says why: told once a generation.
  // Admitted, and running.
  void ShardSent(const v1::WriteShardHeader& header, absl::Time now);
  // The checkpoint of `step` is damaged, as `what` tells, and set aside: the one of `sound_step` is
  // the job's last one now. Between two generations.
  void CheckpointDamaged(int64_t step, absl::string_view what, int64_t sound_step, absl::Time now);
  // The same of one that stays where it is: it cannot be read now, or not be set aside.
  void CheckpointUnreadable(int64_t step, absl::string_view what, int64_t sound_step,
                            absl::Time now);

  // The members that a recovering job waits for, because they have not stopped yet.
  std::vector<std::string> StoppingMembers() const {
    return state() == v1::RECOVERING ? members_.NotStopped() : std::vector<std::string>();
  }
  // Unset: there is none.
  const std::optional<v1::JobTrouble>& trouble() const { return trouble_; }

  // Where the time of its steps goes, by rank; empty while it does not run.
  std::vector<v1::MemberTiming> Timing() const;
  // What its workers have told of their links; nothing unless it runs.
  std::vector<std::shared_ptr<const v1::MemberLinks>> Links() const;

  // ---- time. It stood still from the last Tick() until `now`: whoever is waited for has his time
  // anew, and the job's own deadlines have come no nearer.
  void WentOn(absl::Time now);
  // `writing`: some shard's stream is open.
  void Tick(bool writing, absl::Time now);

  // Ends the job for a cause that is not a member's.
  void Fail(const std::string& reason, const std::string& message, absl::Time now);

 private:
  void Enlist(absl::Time now);
  // Of the member that it names.
  void Lose(const FailureJudge::Verdict& verdict, absl::Time now);
  void Suspect(absl::Time now);
  void NoteStopped(absl::Time now);
  void Judge(const FailureJudge::Verdict& verdict, absl::Time now);
  void Recover(const FailureJudge::Verdict& verdict, absl::Time now);
  void StopAtNonFinite(const FailureJudge::Verdict& verdict, absl::Time now);
  struct Halting {
    bool carries = false;  // the shards go on, as far as is known
    absl::Duration backoff = absl::ZeroDuration();
    std::string lost = "";  // the member that was lost, or leaves; "": none is
  };
  void HaltGeneration(const Halting& halting, const std::string& reason, const std::string& message,
                      absl::Time now);
  // Whether an interruption for other workers is worth it now.
  bool MayChangeWorkers(absl::Time now) const;
  void LetLeave(absl::Time now);
  void LetHaltedLeave(absl::Time now);
  void SaveHalted(int64_t step, absl::Time now);
  bool WaitsForMembers() const;
  std::optional<int64_t> StopsHaltedAt() const;
  bool SavesHalted() const;
  void StopHalted(int64_t step, absl::Time now);
  void StopWithoutShards(absl::string_view why, absl::Time now);
  bool IsSaved(int64_t step) const;
  // The last clause of the event.
  std::string FallBackTo(int64_t sound_step, int64_t step);
  void NoteWhoIsTriedAgain(absl::Time now);
  void CloseRecords(int64_t first_step, absl::Time now);
  void Record(std::vector<StepSummary> steps, std::vector<EvaluationSummary> evaluations,
              absl::Time now);
  void Note(const std::string& reason, const std::string& message, absl::Time now);
  void Tell(const std::string& reason, const std::string& message, absl::Time now);
  void Move(v1::JobState to, const std::string& reason, const std::string& message, absl::Time now);
  void Send(const std::string& member, v1::Directive directive);
  void ReleaseAll();
  void RequestStop(const std::string& reason, const std::string& message, absl::Time now);
  void StopFor(const v1::StopCause& cause, absl::Time now);
  void Stopped(const std::string& where, absl::Time now);
  void CheckDeadline(absl::Time now);
  void SendWanted(const std::string& name, absl::Time now);
  void SendWantedToAll(absl::Time now);

  v1::Directive AcknowledgeDirective() const;
  void FollowStepsMadeAgain(absl::Time now);
  void TakeRecords(const std::string& name, const v1::JobReport& report, absl::Time now);
  bool IsSpare(const std::string& name) const;
  void TakeSnapshots(const std::string& name, const v1::JobReport& report, absl::Time now);
  void ReportOfStranger(const std::string& name, const v1::JobReport* report, absl::Time now);
  void TellRehearsal(const std::string& name);

  void Advance(absl::Time now);
  bool IsOrigin(int64_t step) const;
  void BeginRunning(absl::Time now);
  void GoOnWithout(const std::vector<std::string>& newcomers, const absl::Status& why,
                   absl::Time now);
  CheckpointPolicy::Pace Pace() const;
  void AwaitCheckpoint(int64_t step, absl::Time now);
  std::string WhoOwesSnapshot() const;
  int64_t total_steps() const { return record_.progress().total_steps(); }

  v1::Job record_;
  std::shared_ptr<const v1::JobPlan> plan_;
  std::shared_ptr<const std::string> plan_bytes_;  // of plan_, once a member was told it
  JobMembers members_;
  ProgressLedger ledger_;
  CheckpointPolicy checkpoints_;
  FailureJudge judge_;
  NonFiniteWatch non_finite_;
  Effects effects_;

  Interruption interruption_;
  Rehearsal rehearsal_;
  absl::Time ticked_;  // time has passed until then
  absl::Time running_since_ = absl::InfiniteFuture();
  // Since somebody is leaving whom the job cannot do without: a checkpoint of this step, or a later
  // one, is awaited.
  std::optional<int64_t> leaves_at_;
  int workers_kept_ = 0;                   // when kWorkersYield halted the job; 0: it yielded none
  std::optional<int64_t> suspend_at_;      // that checkpoint is committed; records are awaited
  bool position_known_ = true;             // false: the log was read, and no report has come since
  bool storage_full_noted_ = false;        // since the last checkpoint
  std::optional<v1::JobTrouble> trouble_;  // a checkpoint failed, and none came since
  absl::btree_set<std::string> senders_noted_;  // members, in this generation
};

}  // namespace muster
