#include "services/ps/ps_metrics.h"

#include <deque>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/client_metric.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "prometheus/metric_type.h"

namespace muster {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

std::vector<double> StalenessBuckets() { return {0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 256, 1024}; }

}  // namespace

ShardCounts::ShardCounts()
    : apply_duration(Metrics::DurationBuckets(), 1e-9), push_staleness(StalenessBuckets(), 1) {}

// Adds the threads up when somebody asks.
class PsMetrics::ShardCountsOfAll : public prometheus::Collectable {
 public:
  ShardCounts& Add() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return threads_.emplace_back();
  }

  int64_t Sum(ThreadCount ShardCounts::*count) const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    int64_t sum = 0;
    for (const ShardCounts& thread : threads_) sum += (thread.*count).count();
    return sum;
  }

  std::vector<MetricFamily> Collect() const override {
    return {
        Counter("muster_ps_pushes_total", "Gradients of chunks taken.", &ShardCounts::pushes),
        Counter("muster_ps_push_bytes_total", "Bytes of gradients taken.",
                &ShardCounts::push_bytes),
        Counter("muster_ps_params_bytes_total", "Bytes of parameters sent.",
                &ShardCounts::params_bytes),
        Histogram("muster_ps_apply_duration_seconds",
                  "Summing a chunk's gradients and updating it; of small chunks one in "
                  "sixteen, counted for those before it.",
                  &ShardCounts::apply_duration),
        Histogram("muster_ps_push_staleness_steps",
                  "ssp, asp: updates of the chunk since the value that a gradient was computed "
                  "from, in steps.",
                  &ShardCounts::push_staleness),
    };
  }

 private:
  MetricFamily Counter(const char* name, const char* help, ThreadCount ShardCounts::*count) const {
    ClientMetric metric;
    metric.counter.value = static_cast<double>(Sum(count));
    return {name, help, MetricType::Counter, {metric}};
  }

  MetricFamily Histogram(const char* name, const char* help,
                         ThreadHistogram ShardCounts::*histogram) const ABSL_LOCKS_EXCLUDED(mu_) {
    ClientMetric metric;
    absl::MutexLock lock(&mu_);
    for (const ShardCounts& thread : threads_) (thread.*histogram).AddTo(metric.histogram);
    return {name, help, MetricType::Histogram, {metric}};
  }

  mutable absl::Mutex mu_;
  std::deque<ShardCounts> threads_ ABSL_GUARDED_BY(mu_);
};

ShardCounts& PsMetrics::AddShardThread() { return counts_->Add(); }

int64_t PsMetrics::pushes() const { return counts_->Sum(&ShardCounts::pushes); }

PsMetrics::PsMetrics(Metrics& metrics)
    : metrics_(metrics),
      links_(metrics),
      counts_(std::make_shared<ShardCountsOfAll>()),
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
                                          "Writing a shard's snapshot to the coordinator.")) {
  metrics.Add(counts_);
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
  metrics_.Remove("muster_ps_version", VersionOf(job));
  metrics_.Remove("muster_ps_loss_scale", LossScaleOf(job));
  metrics_.Remove("muster_ps_skipped_steps_in_row", SkipsInRowOf(job));
}

}  // namespace muster
