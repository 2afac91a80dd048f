#include "services/coordinator/coordinator_metrics.h"

#include "absl/strings/ascii.h"

namespace muster {

CoordinatorMetrics::CoordinatorMetrics(Metrics* metrics)
    : term(metrics->Gauge("muster_coordinator_term", "Starts of this coordinator's store so far.")),
      store_commit_seconds(metrics->Histogram("muster_store_commit_duration_seconds",
                                              "Time of one durable transaction of the store.")),
      checkpoint_seconds(metrics->Histogram("muster_checkpoint_duration_seconds",
                                            "From a checkpoint's first shard to its commit.")),
      checkpoint_bytes(
          metrics->Counter("muster_checkpoint_bytes_total", "Bytes of committed checkpoints.")),
      checkpoint_failures(metrics->Counter("muster_checkpoint_failures_total",
                                           "Checkpoints that could not be written.")),
      metrics_(metrics) {}

void CoordinatorMetrics::CountTransition(v1::JobState from, v1::JobState to) {
  metrics_
      ->Counter("muster_job_transitions_total", "Changes of job states.",
                {{"from", absl::AsciiStrToLower(v1::JobState_Name(from))},
                 {"to", absl::AsciiStrToLower(v1::JobState_Name(to))}})
      .Increment();
}

void CoordinatorMetrics::SetJobs(v1::JobState state, int count) {
  metrics_
      ->Gauge("muster_jobs", "Jobs by state.",
              {{"state", absl::AsciiStrToLower(v1::JobState_Name(state))}})
      .Set(count);
}

void CoordinatorMetrics::SetMembers(v1::Role role, int count) {
  metrics_
      ->Gauge("muster_members", "Members with a valid lease.",
              {{"role", absl::AsciiStrToLower(v1::Role_Name(role))}})
      .Set(count);
}

prometheus::Gauge& CoordinatorMetrics::JobGauge(const char* name, const char* help,
                                                const std::string& job) {
  prometheus::Gauge*& gauge = by_job_[job][name];
  if (gauge == nullptr) gauge = &metrics_->Gauge(name, help, {{"job", job}});
  return *gauge;
}

void CoordinatorMetrics::SetJobProgress(const std::string& job, const v1::JobProgress& progress) {
  JobGauge("muster_job_step", "Updates applied.", job).Set(progress.step());
  JobGauge("muster_job_steps_planned", "Updates of the whole job.", job)
      .Set(progress.total_steps());
  JobGauge("muster_job_loss", "Loss of the last step, mean over the global batch.", job)
      .Set(progress.loss());
  JobGauge("muster_job_samples_per_second", "Training samples per second, smoothed.", job)
      .Set(progress.samples_per_second());
  if (progress.has_evaluation_loss()) {
    JobGauge("muster_job_evaluation_loss", "Loss of the last evaluation.", job)
        .Set(progress.evaluation_loss());
  }
}

void CoordinatorMetrics::CheckpointCommitted(const std::string& job, double unix_seconds) {
  JobGauge("muster_checkpoint_last_success_timestamp_seconds",
           "When the job's last checkpoint was committed.", job)
      .Set(unix_seconds);
}

void CoordinatorMetrics::ForgetJob(const std::string& job) {
  auto it = by_job_.find(job);
  if (it == by_job_.end()) return;
  for (auto& [name, gauge] : it->second) metrics_->RemoveGauge(name, *gauge);
  by_job_.erase(it);
}

}  // namespace muster
