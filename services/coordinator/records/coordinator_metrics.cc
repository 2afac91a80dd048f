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

constexpr char kRecoveries[] = "muster_job_recoveries_total";
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
      spans_({&metrics->Histogram("muster_job_queue_wait_seconds",
                                  "From a job's queueing until it has members and a plan."),
              &RecoveryPhase("halt"), &RecoveryPhase("plan"), &RecoveryPhase("prepare"),
              &RecoveryPhase("first_step"),
              &metrics->Histogram("muster_recovery_duration_seconds",
                                  "From the detection of a loss to the first new step.")}),
      detect_(RecoveryPhase("detect")),
      checkpoint_seconds_(metrics->Histogram("muster_checkpoint_duration_seconds",
                                             "From a checkpoint's first shard to its commit.")),
      checkpoint_failures_(MakeCheckpointFailures("muster_checkpoint_failures_total",
                                                  "Checkpoints that could not be written.",
                                                  /*labels=*/{})) {
  metrics->Add(gauges_);
}

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
  spans_.at(static_cast<size_t>(span))->Observe(absl::ToDoubleSeconds(took));
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
  SeriesOf(job).recoveries.insert(&counter);
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
  gauges_->Add("muster_jobs", "Jobs by state.",
               {{"state", absl::AsciiStrToLower(v1::JobState_Name(state))}}, count);
}

void CoordinatorMetrics::SetStates(const std::vector<StateOfJob>& jobs) {
  absl::MutexLock lock(&mu_);
  for (const StateOfJob& of : jobs) {
    gauges_->Add("muster_job_state", "1, with the state of the job and its reason as labels.",
                 {{"job", of.job},
                  {"state", absl::AsciiStrToLower(v1::JobState_Name(of.state))},
                  {"reason", BoundedReason(of.reason)}},
                 1);
  }
}

void CoordinatorMetrics::SetMembers(v1::Role role, MemberState state, int count) {
  static constexpr const char* kStates[] = {"attached", "draining", "silent"};
  gauges_->Add("muster_members",
               "Members with a valid lease: attached, draining (they end, and are given nothing "
               "new), or silent (their stream is broken).",
               {{"role", absl::AsciiStrToLower(v1::Role_Name(role))},
                {"state", kStates[static_cast<int>(state)]}},
               count);
}

void CoordinatorMetrics::SetWorkersWanted(const Workers& workers) {
  const auto set = [this](const char* bound, int64_t count) {
    gauges_->Add("muster_workers_wanted",
                 "Workers that waiting and running jobs need together (bound=min) or could use "
                 "(bound=max).",
                 {{"bound", bound}}, static_cast<double>(count));
  };
  set("min", workers.min);
  set("max", workers.max);
}

void CoordinatorMetrics::SetJob(const std::string& job, const v1::Job& record, int64_t first_step,
                                bool has_trouble) {
  {
    // Counters start at 0, so that an alert sees the first event.
    absl::MutexLock lock(&mu_);
    for (const v1::Role lost : {v1::WORKER, v1::PS}) RecoveriesOf(job, "MEMBER_LOST", lost);
  }
  const auto set = [&](const char* name, const char* help, double value) {
    gauges_->Add(name, help, {{"job", job}}, value);
  };
  const v1::JobProgress& progress = record.progress();
  set("muster_job_running", "1 while the job makes steps, 0 while it prepares or recovers.",
      record.state() == v1::RUNNING);
  set("muster_job_trouble", "1 while something prevents the job from running or from being saved.",
      has_trouble);
  set("muster_job_workers", "Workers of the job.", record.workers_size());
  if (const int logical = record.spec().resources().workers().logical(); logical > 0) {
    set("muster_job_logical_workers", "Shares into which the job cuts every batch.", logical);
  }
  if (const int64_t every = record.spec().checkpoint().every_steps(); every > 0) {
    set("muster_job_checkpoint_every_steps", "Steps between two checkpoints of the job.",
        static_cast<double>(every));
  }
  set("muster_job_first_step",
      "First step of the job: 0, or the step of the checkpoint from which it started.",
      static_cast<double>(first_step));
  set("muster_job_step", "Updates applied.", static_cast<double>(progress.step()));
  set("muster_job_steps_planned", "Updates of the whole job.",
      static_cast<double>(progress.total_steps()));
  if (progress.step() > 0) {  // there is no loss before the first step
    if (HasLoss(progress)) {
      set("muster_job_loss", "Loss of the last step, mean over the global batch.", progress.loss());
    }
    set("muster_job_gradient_norm", "Norm of the last step's gradient.", progress.gradient_norm());
    set("muster_job_learning_rate", "Learning rate of the last step.", progress.learning_rate());
  }
  set("muster_job_samples_per_second", "Training samples per second, smoothed.",
      progress.samples_per_second());
  if (progress.has_evaluation_loss()) {
    set("muster_job_evaluation_loss", "Loss of the last evaluation.", progress.evaluation_loss());
  }
}

void CoordinatorMetrics::SetSteps(const std::string& job,
                                  const std::vector<v1::MemberTiming>& timings) {
  steps_.Add(job, timings);
}

void CoordinatorMetrics::SetHeartbeatAge(v1::Role role, const std::string& member, double seconds) {
  gauges_->Add("muster_member_heartbeat_age_seconds", "Time since the member's last report.",
               {{"role", absl::AsciiStrToLower(v1::Role_Name(role))}, {"member", member}}, seconds);
}

void CoordinatorMetrics::Publish() {
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [job, last] : last_checkpoints_) {
      gauges_->Add("muster_checkpoint_last_success_step",
                   "Step of the job's last committed checkpoint.", {{"job", job}},
                   static_cast<double>(last.step));
      gauges_->Add("muster_checkpoint_last_success_timestamp_seconds",
                   "When the job's last checkpoint was committed.", {{"job", job}},
                   last.unix_seconds);
    }
  }
  steps_.EndSnapshot();
  gauges_->Publish();
}

void CoordinatorMetrics::ShowCheckpoint(const std::string& job, int64_t step, double unix_seconds) {
  absl::MutexLock lock(&mu_);
  last_checkpoints_[job] = {.step = step, .unix_seconds = unix_seconds};
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

CoordinatorMetrics::JobSeries& CoordinatorMetrics::SeriesOf(const std::string& job) {
  JobSeries& series = jobs_[job];
  if (series.checkpoint_seconds == nullptr) {
    series.checkpoint_seconds = &metrics_->Histogram(
        kJobCheckpointSeconds, "From the first shard of a job's checkpoint to its commit.",
        {{"job", job}});
    series.checkpoint_failures =
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
  SeriesOf(*job).checkpoint_seconds->Observe(absl::ToDoubleSeconds(took));
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
  SeriesOf(*job).checkpoint_failures[reason]->Increment();
}

void CoordinatorMetrics::RestJob(const std::string& job) {
  absl::MutexLock lock(&mu_);
  Forget(job);
}

void CoordinatorMetrics::ForgetJob(const std::string& job) {
  absl::MutexLock lock(&mu_);
  Forget(job);
  last_checkpoints_.erase(job);
}

void CoordinatorMetrics::Forget(const std::string& job) {
  const auto series = jobs_.extract(job);
  if (series.empty()) return;
  metrics_->Remove(kJobCheckpointSeconds, *series.mapped().checkpoint_seconds);
  for (prometheus::Counter* reason : series.mapped().checkpoint_failures) {
    metrics_->Remove(kJobCheckpointFailures, *reason);
  }
  for (prometheus::Counter* counter : series.mapped().recoveries) {
    metrics_->Remove(kRecoveries, *counter);
  }
}

}  // namespace muster
