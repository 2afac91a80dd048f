#include "services/coordinator/records/coordinator_metrics.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "lib/status/status.h"
#include "lib/text/known_loss.h"

namespace muster {
namespace {

constexpr char kHeartbeatAge[] = "muster_member_heartbeat_age_seconds";
constexpr char kRecoveries[] = "muster_job_recoveries_total";
constexpr char kState[] = "muster_job_state";
constexpr char kLastCheckpointStep[] = "muster_checkpoint_last_success_step";
constexpr char kLastCheckpointTime[] = "muster_checkpoint_last_success_timestamp_seconds";
constexpr char kOther[] = "OTHER";
// Reasons why a checkpoint may fail; docs/operations/reasons.md explains each.
constexpr const char* kCheckpointFailures[] = {"STORAGE_FULL",    "STORAGE_FAILED",
                                               "DIRECT_MISMATCH", "SNAPSHOT_FAILED",
                                               "STREAM_STALLED",  kOther};
constexpr char kJobCheckpointSeconds[] = "muster_job_checkpoint_duration_seconds";
constexpr char kJobCheckpointFailures[] = "muster_job_checkpoint_failures_total";

bool IsToken(const std::string& reason) {
  return !reason.empty() && reason.size() <= 64 && std::ranges::all_of(reason, [](unsigned char c) {
    return absl::ascii_isupper(c) || absl::ascii_isdigit(c) || c == '_';
  });
}

}  // namespace

CoordinatorMetrics::CoordinatorMetrics(Metrics* metrics)
    : store_commit_seconds(metrics->Histogram("muster_store_commit_duration_seconds",
                                              "Time of one durable transaction of the store.")),
      checkpoint_bytes(
          metrics->Counter("muster_checkpoint_bytes_total", "Bytes of committed checkpoints.")),
      checkpoints_damaged(
          metrics->Counter("muster_checkpoint_damaged_total",
                           "Checkpoints that were damaged or missing when they were read.")),
      lease_expiries(metrics->Counter("muster_lease_expiries_total",
                                      "Members that were lost because they did not report.")),
      tick_lateness(metrics->Histogram("muster_coordinator_tick_lateness_seconds",
                                       "Delay of the check of leases and deadlines.")),
      metrics_(metrics),
      queue_wait_(metrics->Histogram("muster_job_queue_wait_seconds",
                                     "From a job's queueing until it has members and a plan.")),
      detect_(RecoveryPhase("detect")),
      halt_(RecoveryPhase("halt")),
      plan_(RecoveryPhase("plan")),
      prepare_(RecoveryPhase("prepare")),
      first_step_(RecoveryPhase("first_step")),
      recovery_(metrics->Histogram("muster_recovery_duration_seconds",
                                   "From the detection of a loss to the first new step.")),
      checkpoint_seconds_(metrics->Histogram("muster_checkpoint_duration_seconds",
                                             "From a checkpoint's first shard to its commit.")),
      checkpoint_failures_(MakeCheckpointFailures("muster_checkpoint_failures_total",
                                                  "Checkpoints that could not be written.",
                                                  /*labels=*/{})),
      steps_(metrics) {}

void CoordinatorMetrics::ShowTerm(uint64_t term) {
  metrics_->Gauge("muster_coordinator_term", "Starts of this coordinator's store so far.")
      .Set(static_cast<double>(term));
}

prometheus::Histogram& CoordinatorMetrics::RecoveryPhase(const char* phase) {
  return metrics_->Histogram(
      "muster_recovery_phase_duration_seconds",
      "Time of one phase of a recovery: detect (silence of a member that is lost by its lease), "
      "halt, plan, prepare, first_step.",
      {{"phase", phase}});
}

void CoordinatorMetrics::SpanEnded(JobTimeline::Span span, absl::Duration took) {
  const auto histogram = [this, span]() -> prometheus::Histogram& {
    switch (span) {
      case JobTimeline::Span::kQueue:
        return queue_wait_;
      case JobTimeline::Span::kHalt:
        return halt_;
      case JobTimeline::Span::kPlan:
        return plan_;
      case JobTimeline::Span::kPrepare:
        return prepare_;
      case JobTimeline::Span::kFirstStep:
        return first_step_;
      case JobTimeline::Span::kRecovery:
        break;
    }
    return recovery_;
  };
  histogram().Observe(absl::ToDoubleSeconds(took));
}

void CoordinatorMetrics::LossDetected(absl::Duration silence) {
  detect_.Observe(absl::ToDoubleSeconds(silence));
}

std::string CoordinatorMetrics::BoundedReason(const std::string& reason) {
  if (IsToken(reason) && reasons_.size() < kReasonsMax) reasons_.insert(reason);
  return reasons_.contains(reason) ? reason : kOther;
}

prometheus::Counter& CoordinatorMetrics::RecoveriesOf(const std::string& job,
                                                      const std::string& reason,
                                                      std::optional<v1::Role> lost) {
  prometheus::Counter& counter = metrics_->Counter(
      kRecoveries, "Recoveries of the job, by the role of the member that was lost or leaves.",
      {{"job", job},
       {"reason", BoundedReason(reason)},
       {"lost", lost ? absl::AsciiStrToLower(v1::Role_Name(*lost)) : "none"}});
  recoveries_[job].insert(&counter);
  return counter;
}

void CoordinatorMetrics::CountRecovery(const std::string& job, const std::string& reason,
                                       std::optional<v1::Role> lost) {
  absl::MutexLock lock(&mu_);
  RecoveriesOf(job, reason, lost).Increment();
}

void CoordinatorMetrics::CountTransition(v1::JobState from, v1::JobState to,
                                         const std::string& reason) {
  absl::MutexLock lock(&mu_);
  metrics_
      ->Counter("muster_job_transitions_total", "Changes of job states.",
                {{"from", absl::AsciiStrToLower(v1::JobState_Name(from))},
                 {"to", absl::AsciiStrToLower(v1::JobState_Name(to))},
                 {"reason", BoundedReason(reason)}})
      .Increment();
}

void CoordinatorMetrics::SetJobs(v1::JobState state, int count) {
  metrics_
      ->Gauge("muster_jobs", "Jobs by state.",
              {{"state", absl::AsciiStrToLower(v1::JobState_Name(state))}})
      .Set(count);
}

void CoordinatorMetrics::SetStates(const std::vector<StateOfJob>& jobs) {
  absl::MutexLock lock(&mu_);
  absl::flat_hash_map<std::string, prometheus::Gauge*> shown;
  for (const StateOfJob& of : jobs) {
    shown[of.job] =
        &metrics_->Gauge(kState, "1, with the state of the job and its reason as labels.",
                         {{"job", of.job},
                          {"state", absl::AsciiStrToLower(v1::JobState_Name(of.state))},
                          {"reason", BoundedReason(of.reason)}});
    shown[of.job]->Set(1);
  }
  for (const auto& [job, gauge] : states_) {
    const auto now = shown.find(job);
    if (now == shown.end() || now->second != gauge) metrics_->Remove(kState, *gauge);
  }
  states_ = std::move(shown);
}

void CoordinatorMetrics::SetMembers(v1::Role role, MemberState state, int count) {
  static constexpr const char* kStates[] = {"attached", "draining", "silent"};
  metrics_
      ->Gauge("muster_members",
              "Members with a valid lease: attached, draining (they end, and are given nothing "
              "new), or silent (their stream is broken).",
              {{"role", absl::AsciiStrToLower(v1::Role_Name(role))},
               {"state", kStates[static_cast<int>(state)]}})
      .Set(count);
}

void CoordinatorMetrics::SetWorkersWanted(const Workers& workers) {
  auto set = [this](const char* bound, int64_t count) {
    metrics_
        ->Gauge("muster_workers_wanted",
                "Workers that waiting and running jobs need together (bound=min) or could use "
                "(bound=max).",
                {{"bound", bound}})
        .Set(static_cast<double>(count));
  };
  set("min", workers.min);
  set("max", workers.max);
}

prometheus::Gauge& CoordinatorMetrics::JobGauge(const char* name, const char* help,
                                                const std::string& job) {
  prometheus::Gauge*& gauge = by_job_[job][name];
  if (gauge == nullptr) gauge = &metrics_->Gauge(name, help, {{"job", job}});
  return *gauge;
}

void CoordinatorMetrics::SetJob(const std::string& job, const v1::Job& record, int64_t first_step,
                                bool has_trouble) {
  const v1::JobProgress& progress = record.progress();
  absl::MutexLock lock(&mu_);
  // Counters start at 0, so that an alert sees the first event.
  for (const v1::Role lost : {v1::WORKER, v1::PS}) RecoveriesOf(job, "MEMBER_LOST", lost);
  CheckpointsOf(job);
  JobGauge("muster_job_running", "1 while the job makes steps, 0 while it prepares or recovers.",
           job)
      .Set(record.state() == v1::RUNNING);
  JobGauge("muster_job_trouble",
           "1 while something prevents the job from running or from being saved.", job)
      .Set(has_trouble);
  JobGauge("muster_job_workers", "Workers of the job.", job).Set(record.workers_size());
  if (const int logical = record.spec().resources().workers().logical(); logical > 0) {
    JobGauge("muster_job_logical_workers", "Shares into which the job cuts every batch.", job)
        .Set(logical);
  }
  if (const int64_t every = record.spec().checkpoint().every_steps(); every > 0) {
    JobGauge("muster_job_checkpoint_every_steps", "Steps between two checkpoints of the job.", job)
        .Set(static_cast<double>(every));
  }
  JobGauge("muster_job_first_step",
           "First step of the job: 0, or the step of the checkpoint from which it started.", job)
      .Set(static_cast<double>(first_step));
  JobGauge("muster_job_step", "Updates applied.", job).Set(progress.step());
  JobGauge("muster_job_steps_planned", "Updates of the whole job.", job)
      .Set(progress.total_steps());
  if (progress.step() > 0) {  // there is no loss before the first step
    if (HasLoss(progress)) {
      JobGauge("muster_job_loss", "Loss of the last step, mean over the global batch.", job)
          .Set(progress.loss());
    }
    JobGauge("muster_job_gradient_norm", "Norm of the last step's gradient.", job)
        .Set(progress.gradient_norm());
    JobGauge("muster_job_learning_rate", "Learning rate of the last step.", job)
        .Set(progress.learning_rate());
  }
  JobGauge("muster_job_samples_per_second", "Training samples per second, smoothed.", job)
      .Set(progress.samples_per_second());
  if (progress.has_evaluation_loss()) {
    JobGauge("muster_job_evaluation_loss", "Loss of the last evaluation.", job)
        .Set(progress.evaluation_loss());
  }
}

void CoordinatorMetrics::SetSteps(const std::string& job,
                                  const std::vector<v1::MemberTiming>& timings) {
  absl::MutexLock lock(&mu_);
  steps_.Show(job, timings);
}

void CoordinatorMetrics::SetHeartbeatAge(v1::Role role, const std::string& member, double seconds) {
  absl::MutexLock lock(&mu_);
  prometheus::Gauge*& gauge = heartbeat_ages_[member];
  if (gauge == nullptr) {
    gauge = &metrics_->Gauge(
        kHeartbeatAge, "Time since the member's last report.",
        {{"role", absl::AsciiStrToLower(v1::Role_Name(role))}, {"member", member}});
  }
  gauge->Set(seconds);
}

void CoordinatorMetrics::ForgetMember(const std::string& member) {
  absl::MutexLock lock(&mu_);
  auto it = heartbeat_ages_.find(member);
  if (it == heartbeat_ages_.end()) return;
  metrics_->Remove(kHeartbeatAge, *it->second);
  heartbeat_ages_.erase(it);
}

void CoordinatorMetrics::ShowCheckpoint(const std::string& job, int64_t step, double unix_seconds) {
  absl::MutexLock lock(&mu_);
  JobGauge(kLastCheckpointStep, "Step of the job's last committed checkpoint.", job)
      .Set(static_cast<double>(step));
  JobGauge(kLastCheckpointTime, "When the job's last checkpoint was committed.", job)
      .Set(unix_seconds);
}

CoordinatorMetrics::Failures CoordinatorMetrics::MakeCheckpointFailures(const char* name,
                                                                        const char* help,
                                                                        MetricLabels labels) {
  static_assert(std::size(kCheckpointFailures) == std::tuple_size_v<Failures>);
  Failures failures;
  for (size_t reason = 0; reason < failures.size(); ++reason) {
    labels["reason"] = kCheckpointFailures[reason];
    failures[reason] = &metrics_->Counter(name, help, labels);
  }
  return failures;
}

CoordinatorMetrics::CheckpointSeries& CoordinatorMetrics::CheckpointsOf(const std::string& job) {
  CheckpointSeries& series = checkpoints_[job];
  if (series.seconds == nullptr) {
    series.seconds = &metrics_->Histogram(
        kJobCheckpointSeconds, "From the first shard of a job's checkpoint to its commit.",
        {{"job", job}});
    series.failures =
        MakeCheckpointFailures(kJobCheckpointFailures,
                               "Checkpoints of the job that could not be written.", {{"job", job}});
  }
  return series;
}

void CoordinatorMetrics::CountCheckpoint(const std::optional<std::string>& job,
                                         absl::Duration took) {
  checkpoint_seconds_.Observe(absl::ToDoubleSeconds(took));
  if (!job) return;
  absl::MutexLock lock(&mu_);
  CheckpointsOf(*job).seconds->Observe(absl::ToDoubleSeconds(took));
}

void CoordinatorMetrics::CountCheckpointFailure(const std::optional<std::string>& job,
                                                const absl::Status& why) {
  const auto known = std::ranges::find(kCheckpointFailures, ReasonOf(why));
  const size_t reason = std::min<size_t>(known - std::begin(kCheckpointFailures),
                                         // The last entry is OTHER.
                                         std::size(kCheckpointFailures) - 1);
  checkpoint_failures_[reason]->Increment();
  if (!job) return;
  absl::MutexLock lock(&mu_);
  CheckpointsOf(*job).failures[reason]->Increment();
}

void CoordinatorMetrics::RestJob(const std::string& job) {
  absl::MutexLock lock(&mu_);
  Forget(job, /*checkpoints_too=*/false);
}

void CoordinatorMetrics::ForgetJob(const std::string& job) {
  absl::MutexLock lock(&mu_);
  Forget(job, /*checkpoints_too=*/true);
  if (const auto state = states_.extract(job)) metrics_->Remove(kState, *state.mapped());
}

void CoordinatorMetrics::Forget(const std::string& job, bool checkpoints_too) {
  steps_.Forget(job);
  if (const auto checkpoints = checkpoints_.find(job); checkpoints != checkpoints_.end()) {
    metrics_->Remove(kJobCheckpointSeconds, *checkpoints->second.seconds);
    for (prometheus::Counter* reason : checkpoints->second.failures) {
      metrics_->Remove(kJobCheckpointFailures, *reason);
    }
    checkpoints_.erase(checkpoints);
  }
  for (prometheus::Counter* counter : recoveries_[job]) metrics_->Remove(kRecoveries, *counter);
  recoveries_.erase(job);
  const auto gauges = by_job_.find(job);
  if (gauges == by_job_.end()) return;
  absl::erase_if(gauges->second, [&](const auto& entry) {
    const auto& [name, gauge] = entry;
    const bool goes =
        checkpoints_too || (name != kLastCheckpointStep && name != kLastCheckpointTime);
    if (goes) metrics_->Remove(name, *gauge);
    return goes;
  });
  if (gauges->second.empty()) by_job_.erase(gauges);
}

}  // namespace muster
