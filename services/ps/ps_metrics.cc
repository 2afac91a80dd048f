#include "services/ps/ps_metrics.h"

#include <algorithm>

namespace muster {

void DurationTally::Observe(int64_t nanoseconds) {
  const auto bucket =
      std::lower_bound(bounds_.begin(), bounds_.end(), static_cast<double>(nanoseconds) * 1e-9);
  counts_[bucket - bounds_.begin()].fetch_add(1, std::memory_order_relaxed);
  nanoseconds_.fetch_add(nanoseconds, std::memory_order_relaxed);
}

void DurationTally::Drain(prometheus::Histogram& histogram) {
  std::vector<double> increments;
  for (std::atomic<int64_t>& count : counts_) {
    increments.push_back(static_cast<double>(count.exchange(0, std::memory_order_relaxed)));
  }
  histogram.ObserveMultiple(
      increments, static_cast<double>(nanoseconds_.exchange(0, std::memory_order_relaxed)) * 1e-9);
}

PsMetrics::PsMetrics(Metrics& metrics)
    : metrics_(metrics),
      apply_duration_(metrics.Histogram("muster_ps_apply_duration_seconds",
                                        "Summing a chunk's gradients and updating it.")),
      pushes(metrics.Counter("muster_ps_pushes_total", "Gradients of chunks taken.")),
      push_bytes(metrics.Counter("muster_ps_push_bytes_total", "Bytes of gradients taken.")),
      params_bytes(metrics.Counter("muster_ps_params_bytes_total", "Bytes of parameters sent.")),
      duplicate_pushes(metrics.Counter("muster_ps_duplicate_pushes_total",
                                       "Pushes that had been taken before; not applied again.")),
      nonfinite_gradients(
          metrics.Counter("muster_ps_nonfinite_gradients_total",
                          "Updates of a chunk by a gradient with NaN or infinity.")),
      skipped_steps(metrics.Counter(
          "muster_ps_skipped_steps_total",
          "Steps that changed nothing because their gradient was not finite; counted by shard 0.")),
      shard_bytes(metrics.Gauge("muster_ps_shard_bytes", "Memory of all shards.")),
      snapshot_duration(metrics.Histogram("muster_ps_snapshot_duration_seconds",
                                          "Writing a shard's snapshot to the coordinator.")) {
  for (size_t reason = 0; reason < refused_.size(); ++reason) {
    refused_[reason] = &metrics.Counter(
        "muster_ps_refused_messages_total", "Data-plane messages refused or dropped.",
        {{"reason", RefusalReasonName(static_cast<RefusalReason>(reason))}});
  }
}

void PsMetrics::ShowTransport(const std::string& name) {
  metrics_
      .Gauge("muster_transport_info", "1, with the transport as a label.", {{"transport", name}})
      .Set(1);
}

prometheus::Gauge& PsMetrics::VersionOf(const std::string& job) {
  return metrics_.Gauge("muster_ps_version", "Lowest version of the job's chunks here.",
                        {{"job", job}});
}

void PsMetrics::ShowVersion(const std::string& job, int64_t version) {
  VersionOf(job).Set(static_cast<double>(version));
}

prometheus::Gauge& PsMetrics::LossScaleOf(const std::string& job) {
  return metrics_.Gauge("muster_ps_loss_scale",
                        "Loss scale of the next step; 0: the job clips and has none.",
                        {{"job", job}});
}

prometheus::Gauge& PsMetrics::SkipsInRowOf(const std::string& job) {
  return metrics_.Gauge("muster_ps_skipped_steps_in_row",
                        "Steps skipped since the last one that was applied; 10 are an alarm.",
                        {{"job", job}});
}

void PsMetrics::ShowVerdict(const std::string& job, double loss_scale, int64_t skips_in_row) {
  LossScaleOf(job).Set(loss_scale);
  SkipsInRowOf(job).Set(static_cast<double>(skips_in_row));
}

void PsMetrics::ForgetJob(const std::string& job) {
  metrics_.RemoveGauge("muster_ps_version", VersionOf(job));
  metrics_.RemoveGauge("muster_ps_loss_scale", LossScaleOf(job));
  metrics_.RemoveGauge("muster_ps_skipped_steps_in_row", SkipsInRowOf(job));
}

}  // namespace muster
