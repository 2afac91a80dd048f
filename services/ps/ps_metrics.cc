#include "services/ps/ps_metrics.h"

#include <algorithm>

namespace muster {

namespace {

std::vector<double> StalenessBuckets() { return {0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 256, 1024}; }

}  // namespace

void Tally::Observe(int64_t quantity) {
  const auto bucket =
      std::lower_bound(bounds_.begin(), bounds_.end(), static_cast<double>(quantity) * unit_);
  counts_[bucket - bounds_.begin()].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(quantity, std::memory_order_relaxed);
}

void Tally::Drain(prometheus::Histogram& histogram) {
  std::vector<double> increments;
  for (std::atomic<int64_t>& count : counts_) {
    increments.push_back(static_cast<double>(count.exchange(0, std::memory_order_relaxed)));
  }
  histogram.ObserveMultiple(
      increments, static_cast<double>(sum_.exchange(0, std::memory_order_relaxed)) * unit_);
}

PsMetrics::PsMetrics(Metrics& metrics)
    : metrics_(metrics),
      links_(metrics),
      apply_duration_(metrics.Histogram("muster_ps_apply_duration_seconds",
                                        "Summing a chunk's gradients and updating it.")),
      push_staleness_(metrics.Histogram(
          "muster_ps_push_staleness_steps",
          "ssp, asp: updates of the chunk since the value that a gradient was computed from, in "
          "steps.",
          {}, StalenessBuckets())),
      pushes(metrics.Counter("muster_ps_pushes_total", "Gradients of chunks taken.")),
      push_bytes(metrics.Counter("muster_ps_push_bytes_total", "Bytes of gradients taken.")),
      params_bytes(metrics.Counter("muster_ps_params_bytes_total", "Bytes of parameters sent.")),
      duplicate_pushes(metrics.Counter("muster_ps_duplicate_pushes_total",
                                       "Pushes that had been taken before; not applied again.")),
      late_pushes(metrics.Counter("muster_ps_late_pushes_total",
                                  "Gradients dropped because their step was closed without them "
                                  "(backup workers).")),
      nonfinite_gradients(
          metrics.Counter("muster_ps_nonfinite_gradients_total",
                          "Updates of a chunk by a gradient with NaN or infinity.")),
      skipped_steps(metrics.Counter(
          "muster_ps_skipped_steps_total",
          "Steps that changed nothing because their gradient was not finite; counted by shard 0.")),
      shard_bytes(metrics.Gauge("muster_ps_shard_bytes", "Memory of all shards.")),
      snapshot_duration(metrics.Histogram("muster_ps_snapshot_duration_seconds",
                                          "Writing a shard's snapshot to the coordinator.")),
      apply_tally(Metrics::DurationBuckets(), 1e-9),
      staleness_tally(StalenessBuckets(), 1) {
  for (size_t reason = 0; reason < refused_.size(); ++reason) {
    refused_[reason] = &metrics.Counter(
        "muster_ps_refused_messages_total", "Data-plane messages refused or dropped.",
        {{"reason", RefusalReasonName(static_cast<RefusalReason>(reason))}});
  }
}

void PsMetrics::ShowLink(const std::string& job, const std::string& peer,
                         const LinkDescription& link) {
  links_.Show(job, peer, link);
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
  links_.Forget(job);
  metrics_.RemoveGauge("muster_ps_version", VersionOf(job));
  metrics_.RemoveGauge("muster_ps_loss_scale", LossScaleOf(job));
  metrics_.RemoveGauge("muster_ps_skipped_steps_in_row", SkipsInRowOf(job));
}

}  // namespace muster
