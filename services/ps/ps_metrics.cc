#include "services/ps/ps_metrics.h"

#include <algorithm>
#include <deque>
#include <map>
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

// Adds up the threads' counts when the metrics are read.
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
        Counter("muster_ps_forwarded_bytes_total", "Bytes sent to replicas of shards.",
                &ShardCounts::forwarded_bytes),
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

JobCounts::JobCounts(std::string job, std::vector<std::string> workers)
    : job(std::move(job)), workers(std::move(workers)), gate_wait(this->workers.size()) {}

// Adds up the shards of each job when the metrics are read. A job without a shard here has no
// series.
class PsMetrics::JobCountsOfAll : public prometheus::Collectable {
 public:
  std::shared_ptr<JobCounts> Add(std::string job, std::vector<std::string> workers)
      ABSL_LOCKS_EXCLUDED(mu_) {
    auto counts = std::make_shared<JobCounts>(std::move(job), std::move(workers));
    absl::MutexLock lock(&mu_);
    std::erase_if(shards_, [](const auto& shard) { return shard.expired(); });
    shards_.push_back(counts);
    return counts;
  }

  std::vector<MetricFamily> Collect() const override ABSL_LOCKS_EXCLUDED(mu_) {
    std::map<std::string, Sum> jobs;
    {
      absl::MutexLock lock(&mu_);
      for (const auto& shard : shards_) {
        if (const auto counts = shard.lock()) Take(*counts, jobs[counts->job]);
      }
    }
    MetricFamily pushes = Family("muster_ps_job_pushes_total", "Gradients of chunks taken.");
    MetricFamily push_bytes = Family("muster_ps_job_push_bytes_total", "Bytes of gradients taken.");
    MetricFamily params_bytes =
        Family("muster_ps_job_params_bytes_total", "Bytes of parameters sent.");
    MetricFamily nonfinite = Family("muster_ps_job_nonfinite_gradients_total",
                                    "Updates of a chunk by a gradient with NaN or infinity.");
    MetricFamily skipped = Family(
        "muster_ps_job_skipped_steps_total",
        "Steps that changed nothing because their gradient was not finite; counted by shard 0.");
    MetricFamily gate_wait = Family(
        "muster_ps_gate_wait_seconds_total",
        "Time that steps waited for this worker's gradient when all others' were there; of the "
        "shard here that waited longest. Not in ssp and asp, where a step waits for nobody.");
    for (const auto& [job, sum] : jobs) {
      pushes.metric.push_back(Sample({{"job", job}}, sum.pushes));
      push_bytes.metric.push_back(Sample({{"job", job}}, sum.push_bytes));
      params_bytes.metric.push_back(Sample({{"job", job}}, sum.params_bytes));
      nonfinite.metric.push_back(Sample({{"job", job}}, sum.nonfinite_gradients));
      skipped.metric.push_back(Sample({{"job", job}}, sum.skipped_steps));
      for (const auto& [worker, nanoseconds] : sum.gate_wait) {
        gate_wait.metric.push_back(
            Sample({{"job", job}, {"worker", worker}}, static_cast<double>(nanoseconds) * 1e-9));
      }
    }
    std::vector<MetricFamily> families = {pushes,    push_bytes, params_bytes,
                                          nonfinite, skipped,    gate_wait};
    std::erase_if(families, [](const MetricFamily& family) { return family.metric.empty(); });
    return families;
  }

 private:
  struct Sum {
    double pushes = 0, push_bytes = 0, params_bytes = 0, nonfinite_gradients = 0, skipped_steps = 0;
    std::map<std::string, int64_t> gate_wait;  // by worker
  };

  static void Take(const JobCounts& counts, Sum& sum) {
    sum.pushes += static_cast<double>(counts.pushes.count());
    sum.push_bytes += static_cast<double>(counts.push_bytes.count());
    sum.params_bytes += static_cast<double>(counts.params_bytes.count());
    sum.nonfinite_gradients += static_cast<double>(counts.nonfinite_gradients.count());
    sum.skipped_steps += static_cast<double>(counts.skipped_steps.count());
    for (size_t rank = 0; rank < counts.workers.size(); ++rank) {
      int64_t& longest = sum.gate_wait[counts.workers[rank]];
      longest = std::max(longest, counts.gate_wait[rank].count());
    }
  }

  static MetricFamily Family(const char* name, const char* help) {
    return {name, help, MetricType::Counter, {}};
  }

  static ClientMetric Sample(const MetricLabels& labels, double value) {
    ClientMetric metric;
    for (const auto& [name, text] : labels) metric.label.push_back({name, text});
    metric.counter.value = value;
    return metric;
  }

  mutable absl::Mutex mu_;
  std::vector<std::weak_ptr<const JobCounts>> shards_ ABSL_GUARDED_BY(mu_);
};

std::shared_ptr<JobCounts> PsMetrics::AddShard(std::string job, std::vector<std::string> workers) {
  return job_counts_->Add(std::move(job), std::move(workers));
}

ShardCounts& PsMetrics::AddShardThread() { return counts_->Add(); }

int64_t PsMetrics::pushes() const { return counts_->Sum(&ShardCounts::pushes); }

PsMetrics::PsMetrics(Metrics& metrics)
    : metrics_(metrics),
      links_(metrics),
      counts_(std::make_shared<ShardCountsOfAll>()),
      job_counts_(std::make_shared<JobCountsOfAll>()),
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
      memory_bytes(metrics.Gauge("muster_ps_memory_bytes", "What shards may take together.")),
      restore_bytes(metrics.Counter("muster_ps_restore_bytes_total",
                                    "Bytes of checkpoints that shards were restored from.")),
      restore_duration(metrics.Histogram("muster_ps_restore_duration_seconds",
                                         "Reading a shard's part of a checkpoint.")),
      snapshot_duration(metrics.Histogram("muster_ps_snapshot_duration_seconds",
                                          "Writing a shard's snapshot to the coordinator.")) {
  metrics.Add(counts_);
  metrics.Add(job_counts_);
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

prometheus::Gauge& PsMetrics::ReplicaLagOf(const std::string& job) {
  return metrics_.Gauge("muster_ps_backup_lag_versions",
                        "By how many versions the replicas of the job's shards here are behind, at "
                        "most; beyond 1 training waits for them.",
                        {{"job", job}});
}

void PsMetrics::ShowReplicaLag(const std::string& job, int64_t versions) {
  ReplicaLagOf(job).Set(static_cast<double>(versions));
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

prometheus::Gauge& PsMetrics::BytesOf(const std::string& job) {
  return metrics_.Gauge("muster_ps_job_bytes", "Memory of the job's shards here.", {{"job", job}});
}

void PsMetrics::ShowBytes(const std::string& job, int64_t bytes) {
  BytesOf(job).Set(static_cast<double>(bytes));
}

void PsMetrics::ForgetJob(const std::string& job) {
  links_.Forget(job);
  metrics_.Remove("muster_ps_job_bytes", BytesOf(job));
  metrics_.Remove("muster_ps_version", VersionOf(job));
  metrics_.Remove("muster_ps_backup_lag_versions", ReplicaLagOf(job));
  metrics_.Remove("muster_ps_loss_scale", LossScaleOf(job));
  metrics_.Remove("muster_ps_skipped_steps_in_row", SkipsInRowOf(job));
}

}  // namespace muster
