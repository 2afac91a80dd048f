#include "services/coordinator/operations/checkpointer.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/limits/limits.h"
#include "lib/log/log_scope.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"
#include "lib/status/utf8.h"
#include "services/coordinator/checkpoints/checkpoint_retention.h"
#include "services/coordinator/checkpoints/restore_choice.h"
#include "services/coordinator/common/caller.h"
#include "services/coordinator/job/job_state.h"
#include "services/coordinator/job/last_checkpoint.h"

namespace muster {
namespace {

// Whether the error is the sender's, so that the round continues without that stream.
bool HarmsOnlyTheStream(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsCancelled(status) || absl::IsDataLoss(status) ||
         absl::IsFailedPrecondition(status);
}

CheckpointRounds::Key KeyOf(const CheckpointRound& round) {
  return {round.step(), round.snapshot()};
}

bool HasCommitted(const JobRegistry::Entry& entry, uint32_t generation, int64_t step) {
  return generation == entry.job.record().generation() && entry.rounds.HasCommitted(step);
}

// Returns the checkpoint that a job starts from. Returns "" after the job has one of its own, or
// has ended.
std::string NeededBy(const JobRegistry::Entry& entry) {
  const v1::Job& record = *entry.published;
  return IsTerminal(record.state()) || !record.checkpoint().empty() ? "" : entry.origin.restore;
}

absl::Status DirectOff(const std::string& job) {
  return WithReason(absl::FailedPreconditionError(
                        absl::StrCat(job, ": members must send their shards and not write them")),
                    "DIRECT_OFF");
}

absl::Status WithHint(const absl::Status& status, absl::string_view hint) {
  return WithReason(absl::Status(status.code(), absl::StrCat(status.message(), "; ", hint)),
                    ReasonOf(status));
}

// Only the member that has the shard may write and read it: a ps, or in all-reduce a worker.
absl::Status CheckHasShard(const std::optional<Identity>& certificate, const Job& job, int shard) {
  const v1::JobPlan& plan = *job.plan();
  if (!certificate || shard < 0 || shard >= plan.shards_size()) return absl::OkStatus();
  const bool at_worker = plan.spec().sync().mode() == v1::ALLREDUCE;
  return CheckSpeaksAs(certificate, at_worker ? Role::kWorker : Role::kPs, job.WriterOf(shard));
}

}  // namespace

// ---------------------------------------------------------------- users

absl::StatusOr<std::vector<v1::Checkpoint>> Checkpointer::List(const std::string& parent) {
  std::vector<uint64_t> numbers;
  {
    JobRegistry::Transaction transaction(registry_);
    if (parent.empty()) {
      for (const auto& [number, entry] : transaction.jobs()) numbers.push_back(number);
    } else {
      ASSIGN_OR_RETURN(const JobRegistry::Entry* const entry, transaction.Find(parent));
      numbers.push_back(entry->published->number());
    }
  }
  std::vector<v1::Checkpoint> all;
  for (const uint64_t number : numbers) {
    ASSIGN_OR_RETURN(const auto some, registry_->store().Checkpoints(number));
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

absl::StatusOr<v1::Checkpoint> Checkpointer::Find(const CheckpointRef& reference) {
  uint64_t number;
  // The last checkpoint, from which the job continues: later ones were skipped. -1: none.
  int64_t last;
  {
    JobRegistry::Transaction transaction(registry_);
    ASSIGN_OR_RETURN(const JobRegistry::Entry* const entry, transaction.Find(reference.job));
    number = entry->published->number();
    last = CommittedStep(*entry->published);
  }
  ASSIGN_OR_RETURN(const auto checkpoints, registry_->store().Checkpoints(number));
  for (auto it = checkpoints.rbegin(); it != checkpoints.rend(); ++it) {
    const bool is_meant =
        reference.step ? it->step() == *reference.step : last < 0 || it->step() <= last;
    if (is_meant) return *it;
  }
  return WithReason(
      absl::NotFoundError(reference.step
                              ? absl::StrCat("job '", reference.job, "' has no checkpoint of step ",
                                             *reference.step)
                              : absl::StrCat("job '", reference.job, "' has no checkpoint yet")),
      "CHECKPOINT_NOT_FOUND");
}

// ---------------------------------------------------------------- which checkpoints are needed

Checkpointer::Pin::Pin(Checkpointer* checkpointer, std::string job, int64_t step)
    : checkpointer_(checkpointer), job_(std::move(job)), step_(step) {
  absl::MutexLock lock(&checkpointer_->mu_);
  ++checkpointer_->pins_[{job_, step_}];
}

Checkpointer::Pin::~Pin() {
  absl::MutexLock lock(&checkpointer_->mu_);
  const auto pin = checkpointer_->pins_.find({job_, step_});
  if (--pin->second == 0) checkpointer_->pins_.erase(pin);
}

// A pruning that began before the pin does not see it and may still delete the checkpoint. So this
// waits for the end of prunings, and then looks for the checkpoint again.
absl::StatusOr<Checkpointer::Pinned> Checkpointer::FindAndPin(const CheckpointRef& reference) {
  ASSIGN_OR_RETURN(const v1::Checkpoint found, Find(reference));
  Pinned pinned{.pin = std::make_unique<Pin>(this, reference.job, found.step())};
  {
    absl::MutexLock lock(&mu_);
    auto still = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return !pruning_.contains(reference.job);
    };
    if (!AwaitFor(&mu_, absl::Condition(&still), 2 * limits::kChangeWaitMax)) {
      return WithReason(
          absl::DeadlineExceededError(absl::StrCat(reference.job,
                                                   ": its older checkpoints are being pruned: the "
                                                   "coordinator's disk is slow; try again")),
          "STORE_SLOW");
    }
  }
  ASSIGN_OR_RETURN(pinned.checkpoint, Find({.job = reference.job, .step = found.step()}));
  return pinned;
}

std::vector<int64_t> Checkpointer::NeededSteps(const JobRegistry::Transaction& transaction,
                                               const std::string& job) const {
  std::vector<int64_t> steps;
  for (const auto& [pinned, count] : pins_) {
    if (pinned.first == job) steps.push_back(pinned.second);
  }
  auto need = [&](const std::string& checkpoint) {
    const auto reference = ParseCheckpointRef(checkpoint);
    if (reference && reference->job == job && reference->step) steps.push_back(*reference->step);
  };
  for (const auto& [number, entry] : transaction.jobs()) {
    if (const std::string origin = NeededBy(*entry); !origin.empty()) need(origin);
    // Shards of a generation that is preparing may be reading this checkpoint.
    if (entry->job.active()) need(entry->job.plan()->restore());
  }
  return steps;
}

absl::Status Checkpointer::CheckUnneeded(const JobRegistry::Transaction& transaction,
                                         const JobRegistry::Entry& entry) {
  const std::string id = JobIdOf(entry.published->name());
  auto needed = [&](absl::string_view by) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          id, " has the checkpoint that ", by,
                          " starts from: wait until that has one of its own, or cancel it first")),
                      "CHECKPOINT_NEEDED");
  };
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [pinned, count] : pins_) {
      if (pinned.first == id) return needed("a job that is being submitted");
    }
  }
  for (const auto& [number, other] : transaction.jobs()) {
    const std::string source = NeededBy(*other);
    if (source.empty()) continue;
    const auto reference = ParseCheckpointRef(source);
    if (reference && reference->job == id) {
      return needed(absl::StrCat(JobIdOf(other->published->name()), " (",
                                 v1::JobState_Name(other->published->state()), ")"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Checkpoint> Checkpointer::Get(const std::string& name) {
  const auto reference = ParseCheckpointRef(name);
  if (!reference) {
    return FaultsToStatus(
        {{"name", absl::StrCat("'", name, "' is not jobs/J/checkpoints/S, J@S or J")}},
        "INVALID_REQUEST");
  }
  return Find(*reference);
}

absl::Status Checkpointer::Delete(const std::string& name) {
  const auto reference = ParseCheckpointRef(name);
  if (!reference || !reference->step) {
    return FaultsToStatus({{"name", absl::StrCat("'", name,
                                                 "' is not jobs/J/checkpoints/S or J@S: name the "
                                                 "step")}},
                          "INVALID_REQUEST");
  }
  RETURN_IF_ERROR(Find(*reference).status());
  const std::string& job = reference->job;
  const int64_t step = *reference->step;
  auto needed = [&](absl::string_view why) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(CheckpointId(job, step), " ", why)),
        "CHECKPOINT_NEEDED");
  };
  {
    JobRegistry::Transaction transaction(registry_);
    ASSIGN_OR_RETURN(const JobRegistry::Entry* const entry, transaction.Find(job));
    if (entry->job.record().checkpoint() == CheckpointName(job, step)) {
      return needed("is the job's last one: muster delete takes it with the job");
    }
    absl::MutexLock lock(&mu_);
    const std::vector<int64_t> steps = NeededSteps(transaction, job);
    if (std::ranges::count(steps, step) > 0) {
      return needed("is what another job starts from: wait until that has one of its own");
    }
    ++pruning_[job];
  }
  absl::Cleanup done = [&] { EndPruning(job); };
  const absl::Status removed = RemoveCheckpoint(registry_->folder().checkpoints(job), step);
  // NOT_FOUND: a pruning removed it meanwhile.
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  return registry_->changes().Await(Forget(job, {step}), limits::kChangeWaitMax);
}

absl::StatusOr<Job::CheckpointRequest> Checkpointer::Request(const std::string& job) {
  JobRegistry::Transaction transaction(registry_);
  ASSIGN_OR_RETURN(JobRegistry::Entry* const entry, transaction.Find(job));
  auto request = entry->job.RequestCheckpoint(registry_->Now());
  transaction.Commit(*entry);
  return request;
}

void Checkpointer::SaveRunningJobs(absl::Duration timeout) {
  if (timeout <= absl::ZeroDuration()) return;
  const absl::Duration end = SteadyNow() + timeout;
  std::vector<std::pair<std::string, Job::CheckpointRequest>> asked;
  {
    JobRegistry::Transaction transaction(registry_);
    for (JobRegistry::Entry* const entry : transaction.Active()) {
      const auto request = entry->job.RequestCheckpoint(registry_->Now());
      if (!request.ok()) continue;  // the job does not run, or is being suspended
      asked.emplace_back(entry->job.record().name(), *request);
      transaction.Commit(*entry);
    }
  }
  for (const auto& [name, request] : asked) {
    const std::string job = JobIdOf(name);
    const LogScope scope({.job = job});
    const auto saved = Await(name, request, std::max(end - SteadyNow(), absl::ZeroDuration()));
    if (!saved.ok()) {
      LOG(WARNING) << job << " is not saved: " << saved.status().message();
    } else if (!*saved) {
      LOG(WARNING) << job << " is not saved: no checkpoint of step " << request.step << " within "
                   << timeout;
    } else {
      LOG(INFO) << job << " is saved at step " << (*saved)->step();
    }
  }
}

absl::StatusOr<std::optional<v1::Checkpoint>> Checkpointer::Await(
    const std::string& job, const Job::CheckpointRequest& request, absl::Duration timeout) {
  std::string newest_name;
  {
    JobRegistry::Transaction transaction(registry_);
    auto settled = [&]() {
      const auto entry = transaction.Find(job);
      if (!entry.ok()) return true;
      const v1::Job& record = *(*entry)->published;
      const bool runs = record.state() == v1::RUNNING || (*entry)->job.state() == v1::RUNNING;
      return !runs || CommittedStep(record) >= request.step ||
             !(*entry)->job.OutcomeOf(request.request).ok();
    };
    transaction.AwaitFor(absl::Condition(&settled), timeout);
    if (!settled()) return std::nullopt;
    ASSIGN_OR_RETURN(const JobRegistry::Entry* const entry, transaction.Find(job));
    const v1::Job& record = *entry->published;
    if (CommittedStep(record) < request.step) {
      const absl::Status why = entry->job.OutcomeOf(request.request);
      if (!why.ok()) {
        return WithReason(
            absl::AbortedError(absl::StrCat(JobIdOf(record.name()), ": the checkpoint of step ",
                                            request.step, " failed: ", why.message())),
            "CHECKPOINT_FAILED");
      }
      return WithReason(absl::AbortedError(absl::StrCat(JobIdOf(record.name()),
                                                        " stopped before step ", request.step, " (",
                                                        v1::JobState_Name(record.state()), ")")),
                        "JOB_NOT_RUNNING");
    }
    newest_name = record.checkpoint();
  }
  return Find(*ParseCheckpointRef(newest_name));
}

// ---------------------------------------------------------------- shards

absl::StatusOr<std::optional<ShardUpload>> Checkpointer::BeginShard(
    const v1::WriteShardHeader& header, const std::optional<Identity>& certificate,
    Delivery delivery) {
  std::shared_ptr<CheckpointRound> round;
  {
    JobRegistry::Transaction transaction(registry_);
    ASSIGN_OR_RETURN(JobRegistry::Entry* const entry, transaction.Find(header.job()));
    const Job& job = entry->job;
    if (HasCommitted(*entry, header.generation(), header.step())) return std::nullopt;
    RETURN_IF_ERROR(job.AdmitShard(header));
    RETURN_IF_ERROR(CheckHasShard(certificate, job, header.shard()));
    ASSIGN_OR_RETURN(round, entry->rounds.Join({header.step(), header.snapshot()},
                                               [&] { return RoundOf(*entry, header); }));
    if (delivery == Delivery::kDirect && !round->shared()) return DirectOff(job.record().name());
    if (round->shared() && !header.not_direct_because().empty()) {
      entry->job.ShardSent(header, registry_->Now());
      transaction.Commit(*entry);
    }
    entry->rounds.BeginStream();
  }
  ShardUpload upload(round, header.shard());
  if (absl::Status opened = round->Open(); !opened.ok()) return EndShard(upload, opened);
  return upload;
}

CheckpointRound::Options Checkpointer::RoundOf(const JobRegistry::Entry& entry,
                                               const v1::WriteShardHeader& header) const {
  const Job& job = entry.job;
  const bool direct = job.plan()->spec().checkpoint().mode() == v1::CHECKPOINT_MODE_DIRECT;
  CheckpointRound::Options options{
      .plan = job.plan(),
      .writer = {.directory = registry_->folder().checkpoints(job.plan()->job()),
                 .id = absl::StrCat(registry_->store().term(), "-", header.generation(), "-",
                                    header.snapshot()),
                 .step = header.step(),
                 .total_steps = job.record().progress().total_steps(),
                 .data_fingerprint = job.data_fingerprint(),
                 .shared = direct && !entry.rounds.stream_only()},
      .snapshot = header.snapshot(),
      .start = registry_->Now()};
  if (header.has_update_state()) options.writer.update_state = header.update_state();
  return options;
}

std::vector<v1::WriteShardDirectResponse> Checkpointer::LayoutFor(const ShardUpload& upload) const {
  return upload.round()->LayoutFor(upload.shard(), registry_->folder().jobs());
}

absl::Status Checkpointer::EndShard(const ShardUpload& upload, absl::Status stream) {
  CheckpointRound& round = *upload.round();
  bool committing = false;
  if (stream.ok()) {
    const absl::StatusOr<bool> last =
        round.FinishShard(upload.shard(), upload.attempt(), upload.bytes());
    committing = last.ok() && *last;
    stream = committing ? Commit(round) : last.status();
  }
  JobRegistry::Transaction transaction(registry_);
  ASSIGN_OR_RETURN(JobRegistry::Entry* const entry, transaction.Find(round.plan().job()));
  entry->rounds.EndStream();
  if (committing) entry->rounds.EndCommit();
  // Another round of the same step may have committed first.
  if (committing && HasCommitted(*entry, round.plan().generation(), round.step())) {
    return absl::OkStatus();
  }
  if (stream.ok() || (!committing && HarmsOnlyTheStream(stream))) return stream;
  if (!entry->rounds.IsOpen(round)) return stream;
  if (round.shared() && ReasonOf(stream) != "STORAGE_FULL") {
    entry->rounds.StreamOnly();
    stream = WithHint(stream, "the next ones are sent to the coordinator");
  }
  Abandon(*entry, KeyOf(round), stream);
  transaction.Commit(*entry);
  return stream;
}

void Checkpointer::TakeFailures(JobRegistry::Entry& entry, const std::string& member,
                                const v1::JobReport& report) {
  if (!entry.job.Uses(member) || report.generation() != entry.job.record().generation()) return;
  for (const v1::SnapshotReport& snapshot : report.snapshots()) {
    if (snapshot.snapshot() != 0) continue;
    // A shard that skips a snapshot is still writing the previous one.
    const bool passes_over = snapshot.outcome() == v1::SNAPSHOT_MISSED;
    if (!passes_over) AbandonPassed(entry, member, snapshot);
    if (snapshot.outcome() != v1::SNAPSHOT_FAILED && !passes_over) continue;
    v1::WriteShardHeader header;
    header.set_job(report.job());
    header.set_generation(report.generation());
    header.set_shard(snapshot.shard());
    header.set_step(snapshot.step());
    // The job would not accept a stream of this shard either.
    if (!entry.job.AdmitShard(header).ok()) continue;
    const absl::Status why = absl::FailedPreconditionError(
        absl::StrCat(member, ", shard ", snapshot.shard(), ": ", Printable(snapshot.message())));
    if (!passes_over) {
      Abandon(entry, {snapshot.step(), 0}, WithReason(why, "SNAPSHOT_FAILED"));
    } else if (entry.rounds.Abandon({snapshot.step(), 0},
                                    WithReason(why, "SNAPSHOT_PASSED_OVER"))) {
      // Not a failure: the job continues to train instead of waiting.
      const LogScope scope(
          {.member = member, .job = report.job(), .generation = report.generation()});
      LOG(WARNING) << JobIdOf(entry.job.record().name()) << ": no checkpoint of step "
                   << snapshot.step() << ": " << why.message();
    }
  }
}

// Abandons the earlier rounds that the shard has passed. A member reports only the last snapshot of
// a shard, so the failure of an earlier one may never have been reported. Then the other shards of
// that round would wait forever. A shard begins no snapshot before its previous one is over.
void Checkpointer::AbandonPassed(JobRegistry::Entry& entry, const std::string& member,
                                 const v1::SnapshotReport& snapshot) {
  for (const auto& round : entry.rounds.PeriodicBefore(snapshot.step())) {
    if (round->ShardBytes(snapshot.shard()) == 0) continue;  // the shard has nothing to send
    Abandon(entry, KeyOf(*round),
            WithReason(absl::FailedPreconditionError(
                           absl::StrCat(member, ", shard ", snapshot.shard(),
                                        " abandoned it and is now at step ", snapshot.step())),
                       "SNAPSHOT_FAILED"));
  }
}

void Checkpointer::Abandon(JobRegistry::Entry& entry, CheckpointRounds::Key key,
                           const absl::Status& why) {
  if (!entry.rounds.Abandon(key, why)) return;
  entry.job.CheckpointFailed(key.step, key.snapshot, why, registry_->Now());
}

// The rename inside round.Commit() commits the checkpoint. If the store does not record it in time,
// the next start finds the checkpoint on disk.
absl::Status Checkpointer::Commit(CheckpointRound& round) {
  const std::string& job = round.plan().job();
  {
    JobRegistry::Transaction transaction(registry_);
    ASSIGN_OR_RETURN(JobRegistry::Entry* const entry, transaction.Find(job));
    entry->rounds.BeginCommit();  // EndShard() ends it
    if (!entry->rounds.IsOpen(round)) return CheckpointNotWanted(round);
  }
  // Outside of a transaction, because it waits for the disk. So the job may have changed or ended
  // afterwards.
  ASSIGN_OR_RETURN(const v1::Checkpoint checkpoint, round.Commit());
  CommitQueue::Ticket stored;
  {
    JobRegistry::Transaction transaction(registry_);
    ASSIGN_OR_RETURN(JobRegistry::Entry* const entry, transaction.Find(job));
    if (entry->job.active() && entry->job.record().generation() == round.plan().generation()) {
      entry->rounds.Commit(round.step());
    }
    const absl::Time now = registry_->Now();
    const std::optional<std::string> active = entry->ActiveId();
    metrics_->CountCheckpoint(active, now - round.start());
    metrics_->checkpoint_bytes.Increment(static_cast<double>(checkpoint.size_bytes()));
    if (active) {
      metrics_->ShowCheckpoint(*active, round.step(),
                               absl::ToDoubleSeconds(now - absl::UnixEpoch()));
    }
    entry->job.CheckpointCommitted(checkpoint, now);
    stored = transaction.Commit(*entry, {.checkpoint = checkpoint});
  }
  AwaitStored(job, stored);
  PruneAfter(round);
  return absl::OkStatus();
}

void Checkpointer::PruneAfter(const CheckpointRound& round) {
  const std::string& job = round.plan().job();
  const LogScope scope({.job = job, .generation = round.plan().generation()});
  std::vector<int64_t> needed;
  v1::CheckpointSpec spec = round.plan().spec().checkpoint();
  {
    JobRegistry::Transaction transaction(registry_);
    absl::MutexLock lock(&mu_);
    needed = NeededSteps(transaction, job);
    // UpdateJob may have changed the policy since the plan was made.
    if (const auto entry = transaction.Find(job); entry.ok()) {
      const v1::Job& record = (*entry)->job.record();
      spec = record.spec().checkpoint();
      // The job's last checkpoint is always needed. Newer ones that could not be read and were
      // skipped count towards keep_last, so it could be pruned otherwise.
      needed.push_back(CommittedStep(record));
    }
    ++pruning_[job];
  }
  // Holds until the store has recorded the removal, so that every checkpoint found there has its
  // files.
  absl::Cleanup done = [&] { EndPruning(job); };
  const auto retained = Retained(job, spec);
  if (!retained.ok()) {
    LOG(ERROR) << job << ": cannot remove older checkpoints: " << retained.status();
    return;
  }
  needed.insert(needed.end(), retained->begin(), retained->end());
  Pruned pruned = PruneCheckpoints(registry_->folder().checkpoints(job), spec.keep_last(), needed);
  if (!pruned.status.ok()) {
    LOG(ERROR) << job << ": cannot remove older checkpoints: " << pruned.status;
  }
  if (pruned.steps.empty()) return;
  AwaitStored(job, Forget(job, std::move(pruned.steps)));
}

void Checkpointer::EndPruning(const std::string& job) {
  absl::MutexLock lock(&mu_);
  if (--pruning_[job] == 0) pruning_.erase(job);
}

CommitQueue::Ticket Checkpointer::Forget(const std::string& job, std::vector<int64_t> steps) {
  JobRegistry::Transaction transaction(registry_);
  const auto entry = transaction.Find(job);
  if (!entry.ok()) return 0;
  return transaction.Commit(**entry, {.checkpoints_removed = std::move(steps)});
}

absl::StatusOr<std::vector<int64_t>> Checkpointer::Retained(const std::string& job,
                                                            const v1::CheckpointSpec& spec) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> committed,
                   ListCheckpointSteps(registry_->folder().checkpoints(job)));
  return RetainedSteps(spec, committed, [&](int64_t step) -> StepEvaluation {
    const auto log =
        series_->Read(registry_->folder().metrics_log(job),
                      {.names = {"evaluation_loss"}, .from = step, .to = step, .points = 1});
    if (!log.ok()) {
      LOG(WARNING) << job << ": whether step " << step
                   << " is among the best is not known: " << log.status();
      return {.kind = StepEvaluation::kToCome};
    }
    // Several evaluations share a point in a very long log. The best loss of a point stands for all
    // of them, so all of their checkpoints stay.
    for (const SeriesPoint& point : log->series[0].points) {
      if (point.first_step <= step && step <= point.last_step) {
        return {.kind = StepEvaluation::kKnown, .loss = point.values.min};
      }
    }
    // No member trains beyond an evaluation that is not done.
    return {.kind = log->last_step <= step ? StepEvaluation::kToCome : StepEvaluation::kNone};
  });
}

// Waits until the change is stored, because a caller that learns that the shard ended must find the
// checkpoint in the store. If the disk is slow, the next start finds it in the job's folder.
void Checkpointer::AwaitStored(const std::string& job, CommitQueue::Ticket change) {
  const absl::Status late = registry_->changes().Await(change, limits::kChangeWaitMax);
  const LogScope scope({.job = job});
  if (!late.ok()) LOG(ERROR) << job << ": " << late;
}

absl::StatusOr<Checkpointer::RestoreSource> Checkpointer::FindRestore(
    const v1::ReadShardRequest& request, const std::optional<Identity>& certificate) {
  std::shared_ptr<const v1::JobPlan> plan;
  {
    JobRegistry::Transaction transaction(registry_);
    ASSIGN_OR_RETURN(const JobRegistry::Entry* const entry, transaction.Find(request.job()));
    const Job& job = entry->job;
    if (!job.active() || job.record().generation() != request.generation()) {
      return WithReason(absl::FailedPreconditionError(absl::StrCat(
                            JobIdOf(job.record().name()), ": generation ", request.generation(),
                            " is not the current one (", job.record().generation(), ", ",
                            v1::JobState_Name(job.state()), ")")),
                        "STALE_GENERATION");
    }
    RETURN_IF_ERROR(CheckHasShard(certificate, job, request.shard()));
    plan = job.plan();
  }
  const std::string& name = plan->job();
  if (request.shard() < 0 || request.shard() >= plan->shards_size()) {
    return WithReason(
        absl::InvalidArgumentError(absl::StrCat(name, ": no shard ", request.shard(), " (",
                                                plan->shards_size(), " shards)")),
        "SHARD_NOT_FOUND");
  }
  if (plan->restore().empty()) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(name, " starts from initial values")),
        "NOTHING_TO_RESTORE");
  }
  return RestoreSource{plan, PathOfRestore(plan->restore(), registry_->folder())};
}

void Checkpointer::NoteRead(const absl::Status& read) {
  if (absl::IsDataLoss(read)) metrics_->checkpoints_damaged.Increment();
}

}  // namespace muster
