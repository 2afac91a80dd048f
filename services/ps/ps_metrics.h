// The metrics that a parameter server exports at /metrics.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/telemetry/metrics.h"
#include "lib/telemetry/thread_counts.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/routing/link_gauges.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"

namespace muster {

// The counts that a shard thread updates with every message. Only that thread writes them.
struct alignas(128) ShardCounts {
  ShardCounts();

  ThreadCount pushes;
  ThreadCount push_bytes;
  ThreadCount params_bytes;
  ThreadCount forwarded_bytes;
  ThreadHistogram apply_duration;  // nanoseconds
  ThreadHistogram push_staleness;  // steps
};

// The counts of one shard of a job. Only its thread writes them.
struct alignas(128) JobCounts {
  JobCounts(std::string job, std::vector<std::string> workers);

  const std::string job;
  const std::vector<std::string> workers;  // by rank
  ThreadCount pushes;
  ThreadCount push_bytes;
  ThreadCount params_bytes;
  ThreadCount nonfinite_gradients;
  ThreadCount skipped_steps;           // counted by shard 0
  std::vector<ThreadCount> gate_wait;  // by rank, nanoseconds
};

// Looks up its public counters and gauges in `metrics` once; using them takes no lock. Every call
// that shows or forgets a job looks up the job's gauges. `metrics` must outlive this object.
class PsMetrics {
 public:
  explicit PsMetrics(Metrics& metrics);

  prometheus::Counter& refused(RefusalReason reason) {
    return *refused_[static_cast<size_t>(reason)];
  }
  // Shows the transport backend between this ps and `peer`, a worker of `job`. Logs it once.
  void ShowLink(const std::string& job, const std::string& peer, const LinkDescription& link);
  void ShowVersion(const std::string& job, int64_t version);
  // Shows the largest number of versions that a replica lags behind its shard here. Only for jobs
  // with replicas.
  void ShowReplicaLag(const std::string& job, int64_t versions);
  // Shows the results of the last verdict. Only for jobs with judged steps.
  void ShowVerdict(const std::string& job, double loss_scale, int64_t skips_in_row);
  // Shows the memory of the job's shards here.
  void ShowBytes(const std::string& job, int64_t bytes);
  void ForgetJob(const std::string& job);
  // Returns the counts of a new thread, which live as long as `metrics`. Callable from any thread.
  ShardCounts& AddShardThread();
  // The sum over all threads.
  int64_t pushes() const;
  // Returns the counts of a shard of `job`. They are exported as long as a reference exists.
  // Callable from any thread.
  std::shared_ptr<JobCounts> AddShard(std::string job, std::vector<std::string> workers);

 private:
  class ShardCountsOfAll;
  class JobCountsOfAll;

  prometheus::Gauge& VersionOf(const std::string& job);
  prometheus::Gauge& ReplicaLagOf(const std::string& job);
  prometheus::Gauge& LossScaleOf(const std::string& job);
  prometheus::Gauge& SkipsInRowOf(const std::string& job);
  prometheus::Gauge& BytesOf(const std::string& job);

  Metrics& metrics_;
  LinkGauges links_;
  std::array<prometheus::Counter*, static_cast<size_t>(RefusalReason::kOtherLearningRate) + 1>
      refused_;
  const std::shared_ptr<ShardCountsOfAll> counts_;
  const std::shared_ptr<JobCountsOfAll> job_counts_;

 public:
  prometheus::Counter& duplicate_pushes;
  prometheus::Counter& late_pushes;
  prometheus::Counter& nonfinite_gradients;
  prometheus::Counter& skipped_steps;
  prometheus::Gauge& shard_bytes;
  prometheus::Gauge& memory_bytes;
  prometheus::Counter& restore_bytes;
  prometheus::Histogram& restore_duration;
  prometheus::Histogram& snapshot_duration;
};

}  // namespace muster
