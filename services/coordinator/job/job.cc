#include "services/coordinator/job/job.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/job/resource_name.h"
#include "lib/status/status.h"
#include "lib/status/utf8.h"
#include "lib/text/byte_size.h"
#include "lib/text/logical_workers.h"
#include "services/coordinator/common/proto_time.h"
#include "services/coordinator/job/desired_directive.h"
#include "services/coordinator/job/job_refusals.h"
#include "services/coordinator/job/job_state.h"
#include "services/coordinator/job/job_update.h"
#include "services/coordinator/job/last_checkpoint.h"
#include "services/coordinator/job/recovery/replica_placement.h"
#include "services/coordinator/job/recovery/shard_inventory.h"
#include "services/coordinator/job/recovery/steps_to_train.h"
#include "services/coordinator/scheduling/job_conditions.h"
#include "services/coordinator/scheduling/worker_numbers.h"

namespace muster {
namespace {

// Returns " (8 logical: 4, 2, 2)", or "" for a job without logical workers.
std::string LogicalWorkers(const v1::Job& job) {
  const int logical = job.spec().resources().workers().logical();
  if (logical == 0) return "";
  return absl::StrCat(" (", logical,
                      " logical: ", LogicalWorkersOfEach(logical, job.workers_size()), ")");
}

v1::Directive ReleaseDirective() {
  v1::Directive directive;
  directive.mutable_release();
  return directive;
}

}  // namespace

Job::Job(v1::Job record, std::shared_ptr<const v1::JobPlan> plan, uint64_t term, absl::Time now)
    : record_(std::move(record)),
      phase_(PhaseOf(record_)),
      cause_(CauseOf(record_)),
      plan_(std::move(plan)),
      checkpoints_(/*first_snapshot=*/(term << 32) + 1, CommittedStep(record_)),
      warm_up_(/*first_number=*/(term << 32) + 1),
      ticked_(now) {
  UpdateConditions(/*now=*/std::nullopt, record_);  // for a record without conditions
  if (!active()) return;
  CHECK(plan_ != nullptr) << record_.name();
  Enlist(now);
  if (state() == v1::PREPARING) failure_detector_.BeginPreparing();
  if (record_.has_start_time()) members_.BeganBefore();
  const bool goes_back = NonFiniteWatch::AwaitsRollback(record_, *plan_);
  recovery_.BeginAfterRestart(
      /*carries=*/state() == v1::RECOVERING && Recovery::CanContinueInPlace(*plan_) && !goes_back,
      /*halting_since=*/now + FailureDetector::kRestartGrace);
  running_since_ = now;
  failure_detector_.BeginGrace(now);
}

void Job::Restore(const MetricsHistory& history) {
  v1::JobProgress& progress = *record_.mutable_progress();
  const v1::JobProgress stored = progress;
  const int64_t batch_size = record_.spec().data().batch_size();
  if (!history.edges.empty()) progress.clear_update_time();
  for (const StepSummary& step : history.edges) {
    ApplyStep(step, batch_size, FromProto(record_.create_time()), progress);
  }
  progress.clear_remaining();
  for (const EvaluationSummary& evaluation : history.evaluation_edges) {
    ApplyEvaluation(evaluation, progress);
  }
  if (!history.evaluation_edges.empty()) {
    aggregator_.SkipEvaluationsBefore(history.evaluation_edges.back().step + 1);
    if (record_.spec().model().has_external()) {
      aggregator_.RestoreResult(history.evaluation_edges.back());
    }
  }
  const int64_t logged = history.edges.empty() ? 0 : history.edges.back().step + 1;
  if (active()) {
    if (logged > plan_->first_step()) non_finite_.Restore(history.edges.back());
    aggregator_.Begin(*plan_, std::max(plan_->first_step(), logged));
    // The job may have returned to a step before the end of the log. Its workers report the
    // position.
    position_known_ = false;
  } else {
    aggregator_.SkipKnownStepsBefore(logged);
    if (stored.has_update_time() && stored.step() < logged) progress = stored;
  }
  aggregator_.SetDurable(aggregator_.known());
}

bool Job::active() const { return IsActive(state()); }

bool Job::Uses(const std::string& member) const {
  return active() && members_.contains(member) && !members_.at(member).lost;
}

Job::Effects Job::TakeEffects() { return std::exchange(effects_, {}); }

void Job::Enlist(absl::Time now) {
  members_.Enlist(*plan_, now);
  outbox_.ForgetAll();  // the members get directives of another generation
  senders_noted_.clear();
  checkpoints_.Begin(*plan_, now);
  // Steps that are recorded already are not recorded again. One may have been recorded just before
  // the suspension, and is repeated now.
  aggregator_.Begin(*plan_, std::max(plan_->first_step(), aggregator_.steps_before()));
  absl::btree_set<int> newcomers;  // ranks
  for (const std::string& name : members_.workers()) {
    if (!members_.at(name).was_there) newcomers.insert(members_.at(name).rank);
  }
  // If all workers are new, no worker waits for a result.
  if (newcomers.size() < members_.workers().size()) {
    aggregator_.ExcuseFromEvaluation(plan_->first_step(), std::move(newcomers));
  }
}

void Job::Note(const std::string& reason, const std::string& message, absl::Time now) {
  record_.set_revision(record_.revision() + 1);
  UpdateConditions(now, record_);
  v1::JobEvent& event = effects_.events.emplace_back();
  event.set_revision(record_.revision());
  *event.mutable_time() = ToProto(now);
  event.set_state(state());
  event.set_reason(reason);
  event.set_message(Printable(message));
}

void Job::Move(v1::JobState to, const std::string& reason, const std::string& message,
               absl::Time now) {
  if (active() && to != v1::RUNNING) checkpoints_.Stop();
  // No later generation repeats the steps that the job gave up, so record them now.
  if (state() == v1::RUNNING && IsTerminal(to)) Record(aggregator_.TakeSteps(), {}, now);
  if (state() == v1::RUNNING && to != v1::RUNNING) NoteReplacedSamples(now);
  if (state() == v1::PREPARING || state() == v1::RUNNING) {
    if (to != v1::RUNNING) {
      suspend_at_.reset();
      leaves_at_.reset();
      failure_detector_.Reset();
      record_.mutable_progress()->clear_remaining();
    }
  }
  if (active() && !IsActive(to)) {
    ReleaseAll();
    warm_up_.End();
    exclusions_.ReadmitAll();
  }
  if (!IsActive(to)) trouble_.reset();
  JobDeadlines::Move(record_, to, now);
  record_.set_state(to);
  record_.set_reason(reason);
  record_.set_message(Printable(message));
  phase_ = JobPhase::kOther;
  cause_ = record_.message();
  if (to == v1::RUNNING && !record_.has_start_time()) *record_.mutable_start_time() = ToProto(now);
  if (IsTerminal(to)) *record_.mutable_end_time() = ToProto(now);
  if (to == v1::SUSPENDED || IsTerminal(to)) {
    record_.set_suspend_requested(false);
    record_.clear_stop_cause();
  }
  if (IsTerminal(to)) plan_.reset();  // up to megabytes, and not needed any more
  Note(reason, message, now);
}

Stage Job::stage() const {
  switch (state()) {
    case v1::QUEUED:
      return Stage::kQueued;
    case v1::PREPARING:
      return Stage::kPreparing;
    case v1::RUNNING:
      return record_.suspend_requested() ? Stage::kDraining : Stage::kRunning;
    case v1::RECOVERING:
      if (!members_.AllStopped()) return Stage::kHalting;
      if (!IsWaiting()) return Stage::kHalted;
      return SavesHalted() ? Stage::kSavingHalted : Stage::kWaiting;
    case v1::SUSPENDED:
      return Stage::kSuspended;
    case v1::SUCCEEDED:
    case v1::FAILED:
    case v1::CANCELLED:
    case v1::JOB_STATE_UNSPECIFIED:
    case v1::JobState_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::JobState_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return Stage::kEnded;
}

Action Job::React(Trigger trigger, absl::Time now) {
  const Stage before = stage();
  const Action action = ActionOn(before, trigger);
  if (action == Action::kImpossible) {
    Break(absl::StrCat("\"", NameOf(trigger), "\" cannot happen to a job that is ", NameOf(before)),
          now);
  }
  return action;
}

// Ends this job alone, because the jobs of other users must go on.
void Job::Break(const std::string& invariant, absl::Time now) {
  LOG(ERROR) << record_.name() << ": broken invariant: " << invariant;
  if (state() == v1::SUSPENDED || IsTerminal(state())) return;
  Move(v1::FAILED, "INTERNAL",
       absl::StrCat("a fault of the coordinator: ", invariant, "; please report it",
                    AdviceToResume(record_)),
       now);
}

void Job::Fail(const std::string& reason, const std::string& message, absl::Time now) {
  if (React(Trigger::kFail, now) == Action::kEnd) Move(v1::FAILED, reason, message, now);
}

// ---------------------------------------------------------------- directives

void Job::Send(const std::string& member, v1::Directive directive) {
  directive.set_job(JobIdOf(record_.name()));
  directive.set_generation(record_.generation());
  Outgoing& out = effects_.directives.emplace_back(Outgoing{member, std::move(directive), nullptr});
  if (!out.directive.has_prepare()) return;
  if (plan_bytes_ == nullptr) {
    plan_bytes_ = std::make_shared<const std::string>(plan_->SerializeAsString());
  }
  out.plan = plan_bytes_;
}

void Job::ReleaseAll() {
  for (const std::string& name : members_.names()) Send(name, ReleaseDirective());
}

void Job::SendDesired(const std::string& name, absl::Time now) {
  if (!active()) return;
  std::optional<v1::Directive> wanted =
      DesiredDirective(name, {.state = state(),
                              .suspend_requested = record_.suspend_requested(),
                              .total_steps = total_steps(),
                              .plan = *plan_,
                              .members = members_,
                              .checkpoints = checkpoints_,
                              .recovery = recovery_});
  if (wanted && outbox_.IsDue(name, *wanted, now)) Send(name, *std::move(wanted));
}

void Job::SendDesiredToAll(absl::Time now) {
  for (const std::string& name : members_.names()) SendDesired(name, now);
}

// ---------------------------------------------------------------- scheduling and users

void Job::Wait(JobPhase phase, const std::string& message, absl::Time now) {
  if (React(Trigger::kWait, now) != Action::kTell || phase_ == phase) return;
  phase_ = phase;
  Say(std::string(ReasonOf(phase)), message, now);
  if (RecoversToStop()) StopHalted(now);
}

void Job::WaitFor(JobPhase phase, absl::string_view what, absl::Time now) {
  Wait(phase, state() == v1::QUEUED ? absl::StrCat("waits for ", what) : WaitMessage(cause_, what),
       now);
}

void Job::Tell(const std::string& reason, const std::string& message, absl::Time now) {
  phase_ = JobPhase::kOther;
  Say(reason, message, now);
  cause_ = record_.message();
}

void Job::Say(const std::string& reason, const std::string& message, absl::Time now) {
  record_.set_reason(reason);
  record_.set_message(Printable(message));
  Note(reason, message, now);
}

void Job::Schedule(std::shared_ptr<const v1::JobPlan> plan, absl::Time now, TrainedData trained) {
  if (React(Trigger::kSchedule, now) != Action::kPrepare) return;
  if (plan->generation() != record_.generation() + 1) {
    return Break(absl::StrCat("the plan of generation ", plan->generation(), " follows generation ",
                              record_.generation()),
                 now);
  }
  if (record_.has_recovery()) {  // the remaining workers have reported all steps
    Recovery::NoteResumePoint(plan->first_step(), aggregator_.steps_before(),
                              *record_.mutable_recovery());
  }
  // A job that continues closes its records. Even after a suspension some may be missing, if the
  // coordinator restarted and so lost reports.
  const bool goes_on = state() == v1::RECOVERING || aggregator_.steps_before() > 0;
  if (goes_on) CloseRecords(plan->first_step(), now);
  plan_ = std::move(plan);
  plan_bytes_ = nullptr;
  if (plan_->carries() == 0) trained_ = std::move(trained);
  record_.set_generation(plan_->generation());
  if (state() == v1::QUEUED) members_ = {};  // other processes may have these names now
  const std::vector<std::string> leaving = members_.Leaving();
  Enlist(now);
  warm_up_.End();
  exclusions_.BeginGeneration();
  // A leaving ps had to keep its shards until other ps have them. Release it now.
  for (const std::string& name : leaving) {
    if (!members_.contains(name)) Send(name, ReleaseDirective());
  }
  record_.mutable_workers()->Assign(members_.workers().begin(), members_.workers().end());
  record_.mutable_ps()->Assign(members_.ps().begin(), members_.ps().end());
  ApplyPosition(plan_->first_step(), *record_.mutable_progress());
  non_finite_.Begin();
  failure_detector_.BeginPreparing();
  Move(v1::PREPARING, "SCHEDULED",
       absl::StrCat("generation ", plan_->generation(), " on ", record_.workers_size(), " workers",
                    LogicalWorkers(record_), " and ",
                    record_.ps_size() == 0 ? "no" : absl::StrCat(record_.ps_size()),
                    " ps, from step ", plan_->first_step()),
       now);
  NoteWhoIsTriedAgain(now);
  if (const int bare = ShardsWithoutReplica(*plan_); bare > 0) {
    Note("NO_BACKUP",
         absl::StrCat(bare, " of ", plan_->shards_size(),
                      " shards run without a replica: there is no other ps with room for it. They "
                      "are given one when there is"),
         now);
  }
  SendDesiredToAll(now);
}

void Job::NoteWhoIsTriedAgain(absl::Time now) {
  const auto could = [this](const std::string& name) { return exclusions_.Why(name) == nullptr; };
  const auto others = std::ranges::count_if(record_.workers(), could);
  for (const std::string& name : record_.workers()) {
    if (could(name)) continue;
    Note("WORKER_TRIED_AGAIN",
         absl::StrCat(name, " takes part though it could not before (", *exclusions_.Why(name),
                      "): there are ", others, " other workers, and the job needs ",
                      record_.spec().resources().workers().min()),
         now);
  }
}

absl::Status Job::Cancel(absl::Time now) {
  if (state() == v1::CANCELLED) return absl::OkStatus();
  if (React(Trigger::kCancel, now) == Action::kRefuse) return CheckNotEnded(record_);
  Move(v1::CANCELLED, "CANCELLED", "cancelled on request", now);
  return absl::OkStatus();
}

void Job::Update(const v1::JobSpec& spec, absl::Time now) {
  const std::string changes = DescribeUpdate(record_.spec(), spec);
  if (changes.empty()) return;
  for (const absl::string_view path : kUpdatable) TakeOver(path, spec, *record_.mutable_spec());
  Note("UPDATED", changes, now);
}

std::vector<v1::MemberTiming> Job::Timing() const {
  if (state() != v1::RUNNING) return {};
  return members_.Timing();
}

void Job::NoteReplacedSamples(absl::Time now) {
  int64_t replaced = 0, read = 0;
  for (const v1::MemberTiming& member : members_.Timing()) {
    replaced += member.timing().input().substituted();
    read += member.timing().input().samples();
  }
  if (replaced == 0) return;
  Note("SAMPLES_REPLACED",
       absl::StrCat("workers replaced ", replaced, " of ", read,
                    " samples that they read since step ", plan_->first_step(),
                    ", because they are damaged (data.damaged_max); muster data verify lists them"),
       now);
}

std::vector<std::shared_ptr<const v1::MemberLinks>> Job::Links() const {
  if (state() != v1::RUNNING) return {};
  return members_.Links();
}

absl::Status Job::Suspend(absl::Time now) {
  if (Yields()) {  // the user's request wins: the job stays suspended
    record_.clear_stop_cause();
    Note("SUSPEND_REQUESTED", "", now);
  }
  if (ActionOn(stage(), Trigger::kStop) == Action::kRefuse) return CheckNotEnded(record_);
  Stop(std::nullopt, now);
  return absl::OkStatus();
}

// Whether the members have trained steps that may be in no checkpoint.
bool Job::HoldsSteps() const {
  switch (state()) {
    case v1::RUNNING:
      return true;
    case v1::PREPARING:
      return plan_->carries() > 0;
    case v1::RECOVERING:
      return recovery_.carries();
    default:
      return false;
  }
}

// Stops the job, on a user's request if there is no cause. Steps that are in no checkpoint are
// saved first.
void Job::Stop(const std::optional<v1::StopCause>& cause, absl::Time now) {
  if (React(Trigger::kStop, now) != Action::kStop || record_.suspend_requested()) return;
  if (cause) *record_.mutable_stop_cause() = *cause;
  const bool halting = state() == v1::RECOVERING && !members_.AllStopped();  // with records to tell
  if (!HoldsSteps() && !halting) {
    if (!record_.has_start_time()) return Stopped("before it ran", now);
    return Stopped(
        record_.checkpoint().empty()
            ? "with nothing to save"
            : absl::StrCat("at its checkpoint: it goes on from ", WhereItGoesOn(record_)),
        now);
  }
  record_.set_suspend_requested(true);
  checkpoints_.ForgetMisses();
  const std::string reason = cause ? cause->reason() : "SUSPEND_REQUESTED";
  const std::string begin = cause ? absl::StrCat(cause->message(), "; ") : "";
  if (const auto step = StopsHaltedAt()) {
    if (!IsSaved(*step)) {
      Note(reason, absl::StrCat(begin, "step ", *step, ", which its shards hold, is saved first"),
           now);
    }
    return StopHalted(now);
  }
  if (state() != v1::RUNNING) {
    const absl::string_view when = HoldsSteps() ? "workers pause once the job has recovered"
                                                : "the job stops once its members have halted";
    return Note(reason, absl::StrCat(begin, when), now);
  }
  if (SuspendsAtSnapshot(*plan_)) {
    Note(reason, absl::StrCat(begin, "workers go on to a checkpoint a little ahead"), now);
    if (!checkpoints_.asking() && checkpoints_.Ask(Pace())) SendDesiredToAll(now);
    return;
  }
  Note(reason, absl::StrCat(begin, "workers pause at the next step boundary"), now);
  SendDesiredToAll(now);
}

// Moves the job to SUSPENDED, or to FAILED or QUEUED if its stop cause says so. `where` completes
// "suspended" and "stopped". No more records of steps before the checkpoint will come, so a
// recovering job closes them. Requires: the job has stopped, or has nothing to save.
void Job::Stopped(const std::string& where, absl::Time now) {
  if (React(Trigger::kStopped, now) != Action::kStop) return;
  if (state() == v1::RECOVERING) CloseRecords(checkpoints_.committed_step(), now);
  if (!record_.has_stop_cause()) {
    return Move(v1::SUSPENDED, "SUSPENDED", absl::StrCat("suspended ", where), now);
  }
  const v1::StopCause cause = record_.stop_cause();
  const std::string message = absl::StrCat(cause.message(), "; stopped ", where);
  const std::string id = JobIdOf(record_.name());
  if (KindOf(cause) == StopKind::kActiveDeadline) {
    return Fail(cause.reason(), absl::StrCat(message, AdviceToResume(record_)), now);
  }
  if (KindOf(cause) == StopKind::kYields) {
    Move(v1::SUSPENDED, cause.reason(), message, now);
    return Move(v1::QUEUED, cause.reason(), message, now);
  }
  Move(v1::SUSPENDED, cause.reason(),
       absl::StrCat(message, ". Once there are enough members `muster resume ", id, "` goes on"),
       now);
}

void Job::StopWaiting(const std::string& lacks, absl::Time now) {
  if (!WaitsTooLong(now)) return;
  const v1::StopCause cause = JobDeadlines::WaitedTooLong(record_, lacks, now);
  if (record_.has_start_time()) return Stop(cause, now);
  Fail(cause.reason(),
       absl::StrCat(cause.message(),
                    ". Start more members, ask for fewer, or submit it again with a longer "
                    "start_timeout"),
       now);
}

void Job::Yield(const std::string& lacks, absl::Time now) {
  if (!IsWaiting()) return;
  v1::StopCause cause;
  cause.set_reason(kYields);
  cause.set_message(absl::StrCat(
      "waits for ", lacks, ", and yields its workers so that a job ahead of it can continue"));
  Stop(cause, now);
}

bool Job::Yields() const { return KindOf(record_.stop_cause()) == StopKind::kYields; }

void Job::CheckDeadline(absl::Time now) {
  if (!JobDeadlines::IsPastDeadline(record_, now)) return;
  const v1::StopCause cause = JobDeadlines::PastDeadline(record_, now);
  if (JobDeadlines::IsLongPastDeadline(record_, now)) {
    return Fail(
        cause.reason(),
        absl::StrCat(cause.message(), "; no checkpoint of that could be written in ",
                     absl::FormatDuration(JobDeadlines::kStopPatience), AdviceToResume(record_)),
        now);
  }
  Stop(cause, now);
}

absl::Status Job::Resume(const v1::ResourceSpec* resources, absl::Time now) {
  RETURN_IF_ERROR(CheckResumes(record_, resources));
  if (React(Trigger::kResume, now) != Action::kQueue) return absl::OkStatus();  // a repeated call
  if (resources != nullptr) *record_.mutable_spec()->mutable_resources() = *resources;
  Move(v1::QUEUED, "RESUMED", "waits for members", now);
  return absl::OkStatus();
}

absl::StatusOr<Job::CheckpointRequest> Job::RequestCheckpoint(absl::Time now) {
  RETURN_IF_ERROR(CheckMakesCheckpoint(record_));
  if (!checkpoints_.asking() && !checkpoints_.awaiting()) {
    checkpoints_.ForgetMisses();
    if (checkpoints_.Ask(Pace())) SendDesiredToAll(now);
  }
  if (!checkpoints_.asking()) return CheckpointRequest{.step = total_steps()};
  return CheckpointRequest{.step = checkpoints_.asked_step(), .request = checkpoints_.request()};
}

// ---------------------------------------------------------------- reports

void Job::Report(const std::string& name, const v1::JobReport* report, absl::Time now) {
  if (!Uses(name)) return ReportOfOutsider(name, report, now);
  // HALTED without a Halt directive: the worker abandoned the job and is still unwinding.
  const bool dropped = report != nullptr && report->state() == v1::MEMBER_HALTED &&
                       members_.at(name).is_worker() && state() != v1::RECOVERING;
  if (report == nullptr || dropped || report->generation() != record_.generation()) {
    const uint32_t behind = report == nullptr ? 0 : report->generation();
    const JobMembers::Member& member = members_.Take(name, nullptr, now, behind);
    if (state() == v1::RUNNING) {
      return ActOn(
          {.reason = "MEMBER_FORGOT_JOB",
           .message = absl::StrCat(name, " no longer serves the job at step ", member.next_step,
                                   ": it was restarted or gave up waiting for the coordinator"),
           .outcome = LoseMember{name}},
          now);
    }
    if (state() == v1::RECOVERING) NoteStopped(now);
    return SendDesired(name, now);
  }
  if (members_.Take(name, report, now).is_worker()) {
    TakeRecords(name, *report, now);
    FollowStepsMadeAgain(now);
    if (aggregator_.TakeResultIsNew()) AcknowledgeToWorkers();
  }
  if (report->state() == v1::MEMBER_FAILED) {
    if (state() == v1::RECOVERING) return SendDesired(name, now);
    if (auto decision = failure_detector_.OnError(name, report->error(), members_, now)) {
      // A failure of this member alone is not the job's fault, so the others continue.
      if (std::holds_alternative<FailJob>(decision->outcome) &&
          (exclusions_.Why(name) != nullptr || IsSpare(name))) {
        decision->outcome = LeaveOut{.name = name, .why_excluded = report->error().message()};
      }
      return ActOn(*decision, now);
    }
    return Suspect(now);
  }
  if (state() == v1::RECOVERING) {
    TakeSnapshots(name, *report, now);
    NoteStopped(now);
    return SendDesired(name, now);
  }
  if (!report->lost_links().empty()) Suspect(now);
  if (!active() || state() == v1::RECOVERING) return;
  TakeSnapshots(name, *report, now);
  if (active()) Advance(now);
  if (active()) SendDesired(name, now);
}

// Whether the job can continue without this newcomer, because it could train before the newcomer
// came. A new ps is spare only if shards continue in place, because it has only replicas then.
bool Job::IsSpare(const std::string& name) const {
  const bool is_needed = !members_.at(name).is_worker() && plan_->carries() == 0;
  return state() == v1::PREPARING && members_.IsNewcomer(name) && !is_needed;
}

void Job::TakeSnapshots(const std::string& name, const v1::JobReport& report, absl::Time now) {
  for (const v1::SnapshotReport& answer : report.snapshots()) {
    if (!checkpoints_.Wants(answer.snapshot())) continue;
    if (answer.shard() < 0 || answer.shard() >= plan_->shards_size()) continue;
    switch (answer.outcome()) {
      case v1::SNAPSHOT_TAKEN:
      case v1::SNAPSHOT_WRITTEN:
        checkpoints_.Answered(answer.shard());
        break;
      case v1::SNAPSHOT_MISSED:
        if (state() == v1::RECOVERING) {
          // A ps that writes replicas gets the request for its own shards too, and may lack these.
          if (WriterOf(answer.shard()) != name) break;
          checkpoints_.GiveUpHalted(
              absl::NotFoundError(absl::StrCat("shard ", answer.shard(), " does not hold it")),
              now);
        } else if (checkpoints_.Missed(Pace(), now)) {
          SendDesiredToAll(now);
        }
        break;
      case v1::SNAPSHOT_FAILED:
        CheckpointFailed(checkpoints_.asked_step(), answer.snapshot(),
                         WithReason(absl::InternalError(absl::StrCat("shard ", answer.shard(), ": ",
                                                                     answer.message())),
                                    "SNAPSHOT_FAILED"),
                         now);
        break;
      default:
        break;
    }
  }
}

void Job::ReportOfOutsider(const std::string& name, const v1::JobReport* report, absl::Time now) {
  WarmUp::Heard heard = warm_up_.Take(name, report, now);
  if (heard == WarmUp::Heard::kPrepared) {
    const std::string data = DifferenceOfData(members_, name, report->dataset());
    const std::string kind = DifferenceOfKinds(name, PrintableKind(report->device_kind()),
                                               "the job", record_.device_kind());
    exclusions_.Readmit(name);
    if (!data.empty()) exclusions_.Exclude(name, data);
    if (data.empty() && !kind.empty()) exclusions_.ExcludeForKind(name, kind);
    if (exclusions_.ExcludesNow(name)) {
      warm_up_.Remove(name);
      heard = WarmUp::Heard::kFailed;
    }
  } else if (heard == WarmUp::Heard::kFailed) {
    exclusions_.Exclude(name, report->error().message());
  }
  switch (heard) {
    case WarmUp::Heard::kNothing:
    case WarmUp::Heard::kPrepared:
      return;
    case WarmUp::Heard::kSilence:
      return SendWarmUp(name, now);
    case WarmUp::Heard::kFailed:
      Note("WORKER_CANNOT_JOIN",
           absl::StrCat("the job goes on without ", name, ": ", *exclusions_.Why(name)), now);
      break;
    case WarmUp::Heard::kOutsider:
      break;
  }
  Send(name, ReleaseDirective());
  // The member may hold an older generation than the job's, so address that one.
  effects_.directives.back().directive.set_generation(report->generation());
}

void Job::SendWarmUp(const std::string& name, absl::Time now) {
  v1::Directive directive;
  directive.set_job(JobIdOf(record_.name()));
  directive.set_generation(record_.generation());
  directive.mutable_prepare();
  if (!outbox_.IsDue(name, directive, now)) return;
  effects_.directives.push_back({name, std::move(directive), warm_up_.plan()});
}

void Job::Reattached(const std::string& member) {
  outbox_.Forget(member);  // directives on its old stream may be lost
  members_.Reattached(member);
}

void Job::StreamBroken(const std::string& member, absl::Time now) {
  if (!Uses(member)) return;
  members_.StreamBroken(member);
  Suspect(now);
}

void Job::Suspect(absl::Time now) {
  if (state() != v1::RUNNING) return;
  if (auto decision = failure_detector_.Suspect(members_, record_.progress().step()))
    ActOn(*decision, now);
}

void Job::MemberLost(const std::string& name, const std::string& why, absl::Time now) {
  warm_up_.Remove(name);
  if (!Uses(name)) return;
  ActOn(failure_detector_.Lost(name, why, members_, record_.progress().step()), now);
}

// ---------------------------------------------------------------- recovery

void Job::ActOn(const FailureDecision& decision, absl::Time now) {
  if (std::holds_alternative<FailJob>(decision.outcome)) {
    return Fail(decision.reason, decision.message, now);
  }
  if (const auto* not_finite = std::get_if<NotFinite>(&decision.outcome)) {
    return RollBack(*not_finite, decision, now);
  }
  const Action action = React(Trigger::kLose, now);
  if (action == Action::kHalt) return Recover(decision, now);
  if (action != Action::kGoOn) return;
  // Another member fails during the recovery.
  const std::string lost = decision.LostMember();
  if (!lost.empty()) {
    if (members_.at(lost).lost) return;
    Lose(decision, now);
  }
  const bool was_said = !lost.empty() && members_.at(lost).leaving;
  if (!was_said) Note(decision.reason, decision.message, now);
  NoteStopped(now);
  SendDesiredToAll(now);
}

void Job::Recover(const FailureDecision& decision, absl::Time now) {
  const v1::RestartSpec& restart = record_.spec().restart();
  const std::string lost = decision.LostMember();
  // The loss of a leaving member does not count against max_restarts. A trained job keeps all
  // members until its last evaluation is made, so a member may end before it was allowed to leave.
  const bool has_left = !lost.empty() && members_.at(lost).leaving;
  const auto* const left_out = std::get_if<LeaveOut>(&decision.outcome);
  const bool counts = !has_left && (left_out == nullptr || !left_out->is_of_other_kind);
  const auto recovery = Recovery::Count(record_.recovery(), restart, aggregator_.steps_before());
  if (!recovery && counts) {
    const int max = Recovery::RecoveriesMax(restart);
    const std::string& why = decision.message;
    return Fail(decision.reason,
                max == 0 ? why
                         : absl::StrCat(why, "; ", max,
                                        " recoveries in a row have brought no new step "
                                        "(restart.max_restarts)"),
                now);
  }
  const bool was_preparing = state() == v1::PREPARING;
  if (!lost.empty()) Lose(decision, now);
  const bool carries =
      Recovery::CanContinueInPlace(*plan_) && (!was_preparing || plan_->carries() > 0) &&
      ShardInventory(*plan_, members_).MayBeComplete(/*filled_only=*/was_preparing);
  Halting halting{.carries = carries, .lost = lost};
  if (counts) {
    *record_.mutable_recovery() = *recovery;
    halting.backoff = Recovery::Backoff(*recovery, restart);
  }
  HaltGeneration(halting, decision.reason, decision.message, now);
}

void Job::RollBack(const NotFinite& failure, const FailureDecision& decision, absl::Time now) {
  if (React(Trigger::kNotFinite, now) != Action::kHalt) return;
  NonFiniteWatch::Ruling ruling = NonFiniteWatch::Rule(record_, failure, decision.message);
  if (!ruling.rollback) return Fail(decision.reason, ruling.message, now);
  *record_.mutable_recovery() = *std::move(ruling.rollback);
  HaltGeneration({.carries = false}, decision.reason, ruling.message, now);
}

void Job::HaltGeneration(const Halting& halting, const std::string& reason,
                         const std::string& message, absl::Time now) {
  std::optional<v1::Role> lost;
  if (!halting.lost.empty()) lost = members_.at(halting.lost).is_worker() ? v1::WORKER : v1::PS;
  effects_.recoveries.push_back({.reason = reason, .lost = lost});
  recovery_.Begin(halting.carries, halting.backoff, now);
  Move(v1::RECOVERING, reason, message, now);
  phase_ = halting.phase;
  NoteStopped(now);
  SendDesiredToAll(now);
}

// ---------------------------------------------------------------- coming and going

void Job::ChangeMembers(const Halting& halting, const std::string& reason,
                        const std::string& message, absl::Time now) {
  if (React(Trigger::kChangeMembers, now) != Action::kHalt) return;
  HaltGeneration(halting, reason, message, now);
}

std::vector<std::string> Job::MissingSinceRestart(absl::Time now) const {
  if (!failure_detector_.gives_grace() || (state() != v1::RUNNING && state() != v1::PREPARING))
    return {};
  if (record_.suspend_requested()) return {};
  if (now - members_.last_came() < FailureDetector::kReturnTime) return {};
  std::vector<std::string> missing = members_.Silent();
  // The replicas of one missing ps may be on another missing ps.
  const bool several_ps = std::ranges::count_if(missing, [this](const std::string& name) {
                            return !members_.at(name).is_worker();
                          }) > 1;
  const bool goes_on = std::ranges::all_of(missing, [this](const std::string& name) {
    return Recovery::CanDoWithout(*plan_, members_, name);
  });
  // If the job has no recovery left, giving up these members would fail it.
  const bool may_recover =
      Recovery::Count(record_.recovery(), record_.spec().restart(), aggregator_.steps_before())
          .has_value();
  if (several_ps || !goes_on || !may_recover) return {};
  return missing;
}

bool Job::MayChangeWorkers(absl::Time now) const {
  return state() == v1::RUNNING && Recovery::CanContinueInPlace(*plan_) &&
         now - running_since_ >= kJoinAfter && !record_.suspend_requested() && !leaves_at_ &&
         !members_.AnyWorkerDone();
}

int Job::WorkersMax() const {
  if (phase_ == JobPhase::kWorkersYield && workers_kept_ > 0) return workers_kept_;
  return MostWorkers(record_.spec());
}

bool Job::TakesMoreWorkers(absl::Time now) const {
  return MayChangeWorkers(now) && plan_->workers_size() < WorkersMax();
}

void Job::BeginWarmUp(v1::JobPlan plan, const std::vector<std::string>& newcomers, absl::Time now) {
  warm_up_.Begin(std::move(plan), newcomers, now);
  Note(
      "WORKERS_PREPARE",
      absl::StrCat(absl::StrJoin(newcomers, ", "), newcomers.size() == 1 ? " prepares" : " prepare",
                   " to join; the job goes on meanwhile"),
      now);
  for (const std::string& name : newcomers) {
    outbox_.Forget(name);  // it may have the directive of an earlier warm-up
    SendWarmUp(name, now);
  }
}

void Job::LetWorkersJoin(absl::Time now) {
  ChangeMembers({.carries = true, .phase = JobPhase::kWorkersJoin},
                std::string(ReasonOf(JobPhase::kWorkersJoin)),
                absl::StrCat("there are workers for more than ", plan_->workers_size(), " ranks"),
                now);
}

int Job::WorkersToYield(absl::Time now) const {
  if (!MayChangeWorkers(now)) return 0;
  return std::max(0, plan_->workers_size() - record_.spec().resources().workers().min());
}

void Job::YieldWorkers(int workers, const std::string& beneficiary, absl::Time now) {
  workers_kept_ = plan_->workers_size() - std::clamp(workers, 0, WorkersToYield(now));
  ChangeMembers({.carries = true, .phase = JobPhase::kWorkersYield},
                std::string(ReasonOf(JobPhase::kWorkersYield)),
                absl::StrCat("continues with ", workers_kept_, " of ", plan_->workers_size(),
                             " workers, so that ", beneficiary, " can start"),
                now);
}

bool Job::TakesReplicas(absl::Time now) const {
  return state() == v1::RUNNING && ShardsWithoutReplica(*plan_) > 0 &&
         now - running_since_ >= kReplicasJoinAfter && !record_.suspend_requested() &&
         !leaves_at_ && !members_.AnyWorkerDone();
}

void Job::LetReplicasJoin(absl::Time now) {
  ChangeMembers(
      {.carries = true}, "BACKUPS_JOIN",
      absl::StrCat("there is a ps for the replicas of ", ShardsWithoutReplica(*plan_), " shards"),
      now);
}

void Job::MemberLeaves(const std::string& name, absl::Time now) {
  warm_up_.Remove(name);  // its next report gets a Release
  if (!Uses(name)) return;
  if (members_.SetLeaving(name)) {
    Note("MEMBER_LEAVES", absl::StrCat(name, " wants to end: the job goes on without it"), now);
  }
  if (state() == v1::RECOVERING) SendDesired(name, now);
  LetLeave(now);
}

// A member that the job cannot do without (Recovery::CanDoWithout()) leaves after a checkpoint.
// Examples are a ps whose shards have no filled replica elsewhere, and every member of a job whose
// shards cannot continue in place. Near the end of the job this is the final checkpoint.
void Job::LetLeave(absl::Time now) {
  if (RecoversToStop()) return StopHalted(now);  // at its end it releases all members
  if (state() == v1::RECOVERING) return LetHaltedLeave(now);
  if (state() != v1::RUNNING || record_.suspend_requested()) return;
  const std::vector<std::string> leaving = members_.Leaving();
  if (leaving.empty()) return;
  if (checkpoints_.committed_step() == total_steps()) return;  // the job is trained and saved
  for (const std::string& name : leaving) {
    if (!Recovery::CanDoWithout(*plan_, members_, name)) continue;
    const bool owns_shards = !members_.at(name).is_worker() && !members_.at(name).shards.empty();
    return ChangeMembers(
        {.carries = true, .lost = name}, "MEMBER_LEAVES",
        absl::StrCat(name, " leaves",
                     owns_shards ? "; the replicas of its shards take their places" : ""),
        now);
  }
  const bool is_new = !leaves_at_.has_value();
  if (is_new) leaves_at_ = Pace().newest_step;
  if (checkpoints_.committed_step() >= *leaves_at_) {
    return ChangeMembers(
        {.carries = false, .lost = leaving.front()}, "MEMBER_LEAVES",
        absl::StrCat(leaving.front(), " leaves; the job goes on from ", WhereItGoesOn(record_)),
        now);
  }
  // Tick() asks again, and checks again whether the replicas are filled.
  if (is_new && !checkpoints_.asking() && checkpoints_.Ask(Pace())) SendDesiredToAll(now);
}

// Handles leaving ps of a halted job that waits for members. The members may never come, so a
// leaving ps must not wait for them.
void Job::LetHaltedLeave(absl::Time now) {
  const bool waits = IsWaiting() && !checkpoints_.asking();
  const bool all_told = members_.AllStopped() && aggregator_.all_durable();
  if (!waits || !all_told || !recovery_.carries()) return;
  const PsDepartures departures = ShardInventory(*plan_, members_).Departures();
  for (const std::string& name : departures.at_once) {
    Tell("MEMBER_LEAVES", absl::StrCat(name, " leaves; the replicas of its shards are held"), now);
    Send(name, ReleaseDirective());
    members_.SetLost(name);
  }
  if (departures.checkpoint_at) SaveHalted(*departures.checkpoint_at, now);
}

// Saves the halted shards at `step`, so that the leaving ps can go. The event has a new revision,
// which invalidates plans that are being made for these shards.
void Job::SaveHalted(int64_t step, absl::Time now) {
  const std::string leaves = absl::StrCat(members_.Leaving().front(), " leaves; ");
  if (IsSaved(step)) {
    Tell("MEMBER_LEAVES", absl::StrCat(leaves, "the job goes on from ", WhereItGoesOn(record_)),
         now);
    recovery_.LoseShards();
    return SendDesiredToAll(now);
  }
  if (!checkpoints_.AskHalted(step, now)) return;
  Note("MEMBER_LEAVES", absl::StrCat(leaves, "step ", step, " is saved first"), now);
  SendDesiredToAll(now);
}

bool Job::IsWaiting() const { return state() == v1::RECOVERING && Waits(phase_); }

// Returns the version at which the job can be stopped without a recovery, or nullopt.
std::optional<int64_t> Job::StopsHaltedAt() const {
  if (!RecoversToStop() || !IsWaiting()) return std::nullopt;
  if (!recovery_.carries() || !members_.AllStopped()) return std::nullopt;
  const auto in_place = ShardInventory(*plan_, members_).InPlace();
  return in_place ? std::optional(in_place->first_step) : std::nullopt;
}

// Stops a job that recovers only to be stopped, once its members have reported everything. If it
// waits for members, which may never come, its halted shards are saved first. May repeat. Requires:
// RecoversToStop().
void Job::StopHalted(absl::Time now) {
  const auto stop_without_shards = [&](absl::string_view why) {
    Stopped(absl::StrCat("without the state of its shards, because ", why, "; it goes back to ",
                         WhereItGoesOn(record_)),
            now);
  };
  if (!members_.AllStopped()) return;
  if (!recovery_.carries()) return stop_without_shards("no ps holds it any more");
  if (!IsWaiting() || checkpoints_.asking()) return;
  const std::optional<int64_t> step = StopsHaltedAt();
  if (!step) return stop_without_shards("no member can recover it");
  CloseRecords(*step, now);  // the remaining workers have reported everything
  if (IsSaved(*step)) {
    if (!aggregator_.all_durable()) return;  // RecordsDurable() calls this again
    return Stopped(absl::StrCat("at step ", std::max(*step, checkpoints_.committed_step())), now);
  }
  // A job that only yields must not lose steps, so it tries to save them without a limit.
  const absl::Status fault = checkpoints_.HaltedOutcome();
  if (!fault.ok() && !Yields()) {
    return stop_without_shards(
        absl::StrCat("step ", *step, " could not be saved (", fault.message(), ")"));
  }
  if (checkpoints_.AskHalted(*step, now)) SendDesiredToAll(now);
}

bool Job::IsSaved(int64_t step) const {
  return checkpoints_.committed_step() >= step || IsOrigin(step);
}

void Job::Lose(const FailureDecision& decision, absl::Time now) {
  const std::string member = decision.LostMember();
  members_.SetLost(member);
  if (const auto* left_out = std::get_if<LeaveOut>(&decision.outcome)) {
    const bool warms_up = members_.at(member).is_worker() && Recovery::CanContinueInPlace(*plan_);
    if (left_out->is_of_other_kind) {
      exclusions_.ExcludeForKind(member, left_out->why_excluded);
    } else {
      exclusions_.Exclude(member, left_out->why_excluded,
                          warms_up ? absl::InfiniteFuture() : now + left_out->excluded_for);
    }
    // The job counts its memory as free from now on, so the member must release it.
    Send(member, ReleaseDirective());
  }
  if (members_.at(member).is_worker()) {
    aggregator_.Lose(members_.at(member).rank);
  } else {
    checkpoints_.Stop();
    if (!ShardInventory(*plan_, members_).MayBeComplete(/*filled_only=*/false)) {
      recovery_.LoseShards();
    }
  }
}

void Job::NoteStopped(absl::Time now) {
  if (recovery_.NoteStopped(*plan_, members_, now)) {
    checkpoints_.Stop();
    SendDesiredToAll(now);
  }
  if (RecoversToStop() && !recovery_.carries()) StopHalted(now);
}

bool Job::SavesHalted() const { return checkpoints_.asking() || StopsHaltedAt(); }

std::optional<Job::ResumePoint> Job::ResumesAt(absl::Time now) const {
  if (state() != v1::RECOVERING || !aggregator_.all_durable() || SavesHalted()) return std::nullopt;
  return recovery_.ResumesAt(*plan_, members_, now);
}

absl::Time Job::WaitsForFilesSince() const {
  if (state() != v1::RECOVERING || SavesHalted()) return absl::InfiniteFuture();
  return recovery_.StandsReadySince(members_);
}

// ---------------------------------------------------------------- records

// Ends the wait for records of steps before `first_step`. Those that lost workers did not report
// will never be known.
void Job::CloseRecords(int64_t first_step, absl::Time now) {
  Record(aggregator_.CloseSteps(first_step), aggregator_.CloseEvaluations(first_step), now);
}

void Job::TakeRecords(const std::string& name, const v1::JobReport& report, absl::Time now) {
  if (report.steps().empty() && report.evaluations().empty()) return;
  aggregator_.Take(members_.at(name).rank, report);
  const bool has_stopped = state() == v1::RECOVERING || report.state() == v1::MEMBER_FAILED;
  Record(aggregator_.TakeSteps(/*may_be_given_up=*/has_stopped), aggregator_.TakeEvaluations(),
         now);
  if (aggregator_.Repeats(report)) Send(name, AcknowledgeDirective());
}

// Repeated steps move the visible progress, but are not recorded again: the log has them.
void Job::FollowStepsMadeAgain(absl::Time now) {
  const std::optional<StepSummary> step = aggregator_.TakeStepMadeAgain();
  const std::optional<EvaluationSummary> evaluation = aggregator_.TakeEvaluationMadeAgain();
  if (state() != v1::RUNNING) return;
  const int64_t made = std::min(aggregator_.steps_before(), members_.OldestStep());
  v1::JobProgress& progress = *record_.mutable_progress();
  const bool is_first = !position_known_ && made > 0;
  if (is_first) position_known_ = true;
  if (step && (is_first || step->step + 1 > progress.step())) {
    ApplyStep(*step, record_.spec().data().batch_size(), now, progress);
  }
  if (is_first || made > progress.step()) ApplyPosition(made, progress);
  if (evaluation && evaluation->step >= progress.evaluation_step() &&
      evaluation->step <= progress.step()) {
    ApplyEvaluation(*evaluation, progress);
  }
}

void Job::Record(std::vector<StepSummary> steps, std::vector<EvaluationSummary> evaluations,
                 absl::Time now) {
  for (StepSummary& step : steps) {
    ApplyStep(step, record_.spec().data().batch_size(), now, *record_.mutable_progress());
    if (const auto remark = non_finite_.Take(step, record_)) {
      Note(remark->reason, remark->message, now);
    }
    effects_.steps.push_back(std::move(step));
  }
  for (EvaluationSummary& evaluation : evaluations) {
    ApplyEvaluation(evaluation, *record_.mutable_progress());
    effects_.evaluations.push_back(std::move(evaluation));
  }
  if (const std::optional<StepGap> gap = aggregator_.TakeGap()) {
    Note("STEPS_LOST",
         absl::StrCat("the results of steps ", gap->first, " to ", gap->last,
                      " are not known: the workers that had them are lost"),
         now);
  }
  if (!aggregator_.all_durable()) effects_.records = aggregator_.known();
}

v1::Directive Job::AcknowledgeDirective() const {
  v1::Directive directive;
  directive.mutable_acknowledge()->set_steps_before(aggregator_.durable().steps);
  directive.mutable_acknowledge()->set_evaluations_before(aggregator_.durable().evaluations);
  if (const auto& result = aggregator_.result()) {
    v1::EvaluationResult& evaluation = *directive.mutable_acknowledge()->mutable_evaluation();
    evaluation.set_step(result->step);
    evaluation.set_samples(result->samples);
    evaluation.mutable_metrics()->insert(result->metrics.begin(), result->metrics.end());
  }
  return directive;
}

void Job::AcknowledgeToWorkers() {
  for (const std::string& name : members_.names()) {
    if (members_.at(name).is_worker()) Send(name, AcknowledgeDirective());
  }
}

void Job::RecordsDurable(const RecordsBefore& durable, absl::Time now) {
  aggregator_.SetDurable(durable);
  if (!active()) return;
  AcknowledgeToWorkers();
  if (state() == v1::RUNNING) Advance(now);
  if (state() == v1::RECOVERING) LetLeave(now);
}

// ---------------------------------------------------------------- progress

void Job::Advance(absl::Time now) {
  if (state() == v1::PREPARING) {
    if (members_.AllPrepared()) BeginRunning(now);
    return;
  }
  if (state() != v1::RUNNING) return;
  const bool all_durable = aggregator_.all_durable();  // if not, RecordsDurable() calls this again
  const bool all_told = all_durable && !members_.AnyHasMoreRecords();
  if (members_.AllWorkersDone()) {
    if (checkpoints_.committed_step() != total_steps()) return AwaitCheckpoint(total_steps(), now);
    if (!all_durable) return;
    return Complete(now);
  }
  if (suspend_at_) {
    // The record of step suspend_at_ comes only after all records before the checkpoint.
    if (aggregator_.steps_before() <= *suspend_at_ || !all_told) return;
    return Stopped(absl::StrCat("at step ", *suspend_at_), now);
  }
  const std::optional<int64_t> stopped = members_.StoppedAt(total_steps());
  if (!record_.suspend_requested() || !stopped) return checkpoints_.StopAwaiting();
  // A checkpoint of a later step, from the previous generation, may have been committed late.
  if (!IsSaved(*stopped)) return AwaitCheckpoint(*stopped, now);
  if (!all_told) return;
  Stopped(absl::StrCat("at step ", std::max(*stopped, checkpoints_.committed_step())), now);
}

void Job::Complete(absl::Time now) {
  if (React(Trigger::kTrained, now) != Action::kEnd) return;
  const NonFiniteWatch::Remark completion = non_finite_.Completion(record_);
  Move(v1::SUCCEEDED, completion.reason, completion.message, now);
}

// Whether `step` is the first step of a generation that did not continue in place. Nothing has been
// trained then since the checkpoint, or the beginning, from which the generation started.
bool Job::IsOrigin(int64_t step) const {
  return plan_->carries() == 0 && step == plan_->first_step();
}

void Job::BeginRunning(absl::Time now) {
  if (React(Trigger::kPrepared, now) != Action::kRun) return;
  const absl::StatusOr<int64_t> total =
      StepsToTrain(*plan_, members_, checkpoints_.committed_step());
  if (ReasonOf(total.status()) == "DATASET_MISMATCH") {
    const std::vector<std::string> newcomers = NewcomersWithOtherData(members_);
    for (const std::string& name : newcomers) GoOnWithout(name, total.status(), now);
    if (!newcomers.empty()) return;
  }
  if (!total.ok()) {
    return Fail(ReasonOf(total.status()), std::string(total.status().message()), now);
  }
  const KindsOfWorkers kinds = CompareKinds(members_, record_.device_kind());
  if (!kinds.others.empty()) return RefuseOtherKinds(kinds, now);
  if (const absl::Status same = CheckSameData(*plan_, members_, trained_); !same.ok()) {
    if (trained_.is_own) return Fail(ReasonOf(same), std::string(same.message()), now);
    Note(ReasonOf(same), std::string(same.message()), now);
  }
  if (const std::string& data = FingerprintOfData(*plan_, members_); !data.empty()) {
    trained_ = {.fingerprint = data, .is_own = true};
  }
  TakeKind(kinds.kind, now);
  std::string changed;
  if (const int64_t before = total_steps(); before != 0 && before != *total) {
    changed = absl::StrCat("; it was to end at step ", before,
                           " before: its data set has another number of samples now");
  }
  record_.mutable_progress()->set_total_steps(*total);
  members_.Began();
  for (const v1::PlanWorker& worker : plan_->workers()) exclusions_.Readmit(worker.member());
  Move(v1::RUNNING, "STARTED", absl::StrCat("steps ", plan_->first_step(), " to ", *total, changed),
       now);
  running_since_ = now;
  // Replaces a periodic checkpoint that the halt of the previous generation cut off.
  if (plan_->carries() > 0 && checkpoints_.IsBehind(plan_->first_step())) {
    checkpoints_.Ask(Pace());
  }
  SendDesiredToAll(now);
}

// Excludes a newcomer that sees other data or is of another kind. Recoveries take it only if there
// are no other workers.
void Job::GoOnWithout(const std::string& newcomer, const absl::Status& why, absl::Time now) {
  if (!active()) return;  // the job has used up its recoveries
  const std::string message(why.message());
  ActOn({.reason = ReasonOf(why),
         .message = absl::StrCat(members_.Describe(newcomer), " cannot join: ", message),
         .outcome = LeaveOut{.name = newcomer,
                             .why_excluded = message,
                             .is_of_other_kind = ReasonOf(why) == kDeviceKindsDiffer}},
        now);
}

void Job::RefuseOtherKinds(const KindsOfWorkers& kinds, absl::Time now) {
  const bool has_trained = !record_.device_kind().empty();
  for (const std::string& name : kinds.others) {
    const std::string difference = DifferenceOfKinds(
        name, members_.at(name).device_kind,
        kinds.kind == record_.device_kind() ? "the job" : kinds.first, kinds.kind);
    if (!has_trained) {
      return Fail(kDeviceKindsDiffer,
                  absl::StrCat(difference,
                               "; give all workers like devices and the same --threads_per_device, "
                               "or remove resources.workers.logical"),
                  now);
    }
    GoOnWithout(name, WithReason(absl::FailedPreconditionError(difference), kDeviceKindsDiffer),
                now);
  }
}

void Job::TakeKind(const std::string& kind, absl::Time now) {
  const std::string former = record_.device_kind();
  if (kind.empty() || kind == former) return;
  record_.set_device_kind(kind);
  if (former.empty()) return;
  exclusions_.ReadmitOtherKinds();
  Note("DEVICE_KIND_CHANGED",
       absl::StrCat("none of its workers is of the former kind: the job computes with ",
                    WordsNotIn(kind, former), " from now on, not with ", WordsNotIn(former, kind),
                    "; later bits may differ from those of a run without this change"),
       now);
}

CheckpointPolicy::Pace Job::Pace() const {
  const v1::JobProgress& progress = record_.progress();
  return {.newest_step = std::max(progress.step(), members_.NewestStep()),
          .steps_per_second = progress.samples_per_second() /
                              std::max<int64_t>(1, record_.spec().data().batch_size()),
          .total_steps = total_steps()};
}

// ---------------------------------------------------------------- checkpoints

void Job::AwaitCheckpoint(int64_t step, absl::Time now) {
  if (checkpoints_.Await(step, total_steps(), now)) SendDesiredToAll(now);
}

absl::Status Job::AdmitShard(const v1::WriteShardHeader& header) const {
  const bool is_halted = state() == v1::RECOVERING && Wants(header.snapshot());
  RETURN_IF_ERROR(CheckTakesShard(record_, plan_.get(), is_halted, header));
  return checkpoints_.Admit(header, total_steps(), JobIdOf(record_.name()));
}

std::string Job::data_fingerprint() const {
  if (trained_.is_own && !trained_.fingerprint.empty()) return trained_.fingerprint;
  for (const std::string& name : members_.workers()) {  // the coordinator has restarted
    const std::string& reported = members_.at(name).dataset.fingerprint();
    if (!reported.empty()) return reported;
  }
  return "";
}

std::string Job::WriterOf(int shard) const {
  if (state() == v1::RECOVERING) {
    if (const auto held = ShardInventory(*plan_, members_).InPlace())
      return held->shards[shard].member();
  }
  return plan_->shards(shard).member();
}

void Job::CheckpointCommitted(const v1::Checkpoint& checkpoint, absl::Time now) {
  storage_full_noted_ = false;
  trouble_.reset();
  if (checkpoints_.Committed(checkpoint.step(), now)) record_.set_checkpoint(checkpoint.name());
  Note("CHECKPOINT_COMMITTED",
       absl::StrCat(CheckpointIdOf(checkpoint.name()), ", ", FormatBytes(checkpoint.size_bytes())),
       now);
  if (state() == v1::RECOVERING) return LetLeave(now);
  if (state() != v1::RUNNING) return;
  if (record_.suspend_requested() && SuspendsAtSnapshot(*plan_) && !checkpoints_.asking() &&
      checkpoint.step() < total_steps()) {
    suspend_at_ = checkpoint.step();
  }
  Advance(now);
  LetLeave(now);
}

void Job::CheckpointFailed(int64_t step, uint64_t snapshot, const absl::Status& why,
                           absl::Time now) {
  if (state() != v1::RUNNING && !Wants(snapshot)) return;
  effects_.checkpoints_failed.push_back(why);
  const bool full = ReasonOf(why) == "STORAGE_FULL";
  if (!full || !std::exchange(storage_full_noted_, true)) {
    Note("CHECKPOINT_FAILED", absl::StrCat("step ", step, ": ", why.message()), now);
  }
  trouble_.emplace();
  trouble_->set_reason(ReasonOf(why));
  trouble_->set_message(
      Printable(absl::StrCat("the checkpoint of step ", step,
                             " could not be written: ", why.message(), "; the job tries again")));
  const bool for_good = checkpoints_.Failed(step, snapshot, total_steps(), why, now);
  if (for_good && state() == v1::RUNNING) {
    Fail("CHECKPOINT_FAILED",
         absl::StrCat("the final checkpoint (step ", step, ") could not be written ",
                      CheckpointPolicy::kFinalAttempts, " times: ", why.message()),
         now);
  }
}

std::optional<v1::JobTrouble> Job::trouble() const {
  if (trouble_ || (state() != v1::RUNNING && state() != v1::PREPARING)) return trouble_;
  const std::string* const name = members_.LongestProgramWait();
  if (name == nullptr) return std::nullopt;
  const v1::ProgramWait& wait = *members_.at(*name).program_wait;
  if (FromProto(wait.time()) <= kProgramPatience) return std::nullopt;
  const std::string minutes = absl::StrCat(absl::ToInt64Minutes(FromProto(wait.time())), " min");
  v1::JobTrouble trouble;
  trouble.set_reason(wait.attached() ? "PROGRAM_SLOW" : "PROGRAM_ABSENT");
  trouble.set_message(wait.attached() ? absl::StrCat(*name, " has been in user code for ", minutes)
                                      : absl::StrCat(*name, " has waited ", minutes,
                                                     " for its program; start it or see its log"));
  return trouble;
}

void Job::ShardSent(const v1::WriteShardHeader& header, absl::Time now) {
  const std::string member = WriterOf(header.shard());
  if (!senders_noted_.insert(member).second) return;
  Note("SHARD_SENT",
       absl::StrCat(
           member, " sends its part of the checkpoint of step ", header.step(),
           " instead of writing it, and tries again at the next: ", header.not_direct_because()),
       now);
}

void Job::CheckpointUnusable(Unusable why, int64_t step, absl::string_view what, int64_t sound_step,
                             absl::Time now) {
  const std::string id = JobIdOf(record_.name());
  record_.set_checkpoint(CheckpointName(id, sound_step));
  checkpoints_.FallBackTo(sound_step);
  const bool damaged = why == Unusable::kDamaged;
  Note(damaged ? "CHECKPOINT_DAMAGED" : "CHECKPOINT_UNREADABLE",
       absl::StrCat(CheckpointId(id, step),
                    damaged ? " is damaged and set aside" : " cannot be used and stays where it is",
                    " (", what, "); ", CheckpointId(id, sound_step), " is used instead: steps ",
                    sound_step, " to ", step, " are trained again"),
       now);
}

std::string Job::WhoOwesSnapshot() const {
  for (const std::string& name : members_.names()) {
    if (checkpoints_.DesiredOf(members_.at(name).shards)) return name;
  }
  return "";
}

void Job::WentOn(absl::Time now) {
  JobDeadlines::StoodStill(record_, now - std::exchange(ticked_, now), now);
  warm_up_.WentOn(now);
  members_.WentOn(now);
  failure_detector_.WentOn(now);
  recovery_.WentOn(now);
}

void Job::Tick(bool writing, absl::Time now) {
  ticked_ = now;
  if (!active()) return;
  FailureDetector::Situation situation{
      .preparing = state() == v1::PREPARING,
      .pausing =
          state() == v1::RUNNING && record_.suspend_requested() && !SuspendsAtSnapshot(*plan_),
      .first_step = plan_->first_step(),
      .step = record_.progress().step(),
      .halting_since =
          state() == v1::RECOVERING ? recovery_.halting_since() : absl::InfiniteFuture()};
  if (state() == v1::RUNNING && checkpoints_.awaiting() && checkpoints_.asking() && !writing) {
    situation.mute = WhoOwesSnapshot();
    situation.asked_step = checkpoints_.asked_step();
  }
  if (auto decision = failure_detector_.Tick(situation, members_, now))
    return ActOn(*decision, now);
  if (state() == v1::RUNNING) {
    if (const auto failure = non_finite_.Failure(record_)) {
      return Fail(failure->reason, failure->message, now);
    }
  }
  exclusions_.ReadmitInTime(now);
  if (const std::string stalled = warm_up_.TakeStalled(now); !stalled.empty()) {
    const std::string why =
        absl::StrCat("has shown no progress for ", absl::FormatDuration(WarmUp::kStallMax));
    exclusions_.Exclude(stalled, absl::StrCat("it ", why));
    Note("WORKER_CANNOT_JOIN", absl::StrCat("the job goes on without ", stalled, ", which ", why),
         now);
  }
  CheckDeadline(now);
  if (!active()) return;
  if (state() == v1::RECOVERING) checkpoints_.TickHalted(writing, now);
  LetLeave(now);
  if (!active() || state() == v1::RECOVERING) return;
  // Asks again for a checkpoint that is still needed. The last attempt may have failed, or the
  // coordinator may have restarted.
  const bool suspending = state() == v1::RUNNING && record_.suspend_requested() &&
                          SuspendsAtSnapshot(*plan_) && !suspend_at_;
  const bool due = state() == v1::RUNNING && checkpoints_.IsDue(Pace(), now);
  const bool needs_one = suspending || leaves_at_.has_value() || due;
  if (checkpoints_.Tick(writing, needs_one, Pace(), now)) SendDesiredToAll(now);
}

}  // namespace muster
