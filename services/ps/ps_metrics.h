// What a parameter server exports at /metrics.
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

// What a shard thread counts with every message, and nobody else writes.
struct alignas(128) ShardCounts {
  ShardCounts();

  ThreadCount pushes;
  ThreadCount push_bytes;
  ThreadCount params_bytes;
  ThreadCount forwarded_bytes;
  ThreadHistogram apply_duration;  // nanoseconds
  ThreadHistogram push_staleness;  // steps
};

// What one shard of a job counts, and only its thread writes.
struct alignas(128) JobCounts {
  JobCounts(std::string job, std::vector<std::string> workers);

  const std::string job;
  const std::vector<std::string> workers;  // by rank
  ThreadCount pushes;
  ThreadCount push_bytes;
  ThreadCount params_bytes;
  ThreadCount nonfinite_gradients;
  ThreadCount skipped_steps;           // by shard 0
  std::vector<ThreadCount> gate_wait;  // by rank, nanoseconds
};

// References into `metrics`, which outlives this: looked up once. Counters and gauges take no lock.
class PsMetrics {
 public:
  explicit PsMetrics(Metrics& metrics);

  prometheus::Counter& refused(RefusalReason reason) {
    return *refused_[static_cast<size_t>(reason)];
  }
  // What carries the messages of `job` to `peer`, a worker. Logs it once.
  void ShowLink(const std::string& job, const std::string& peer, const LinkDescription& link);
  void ShowVersion(const std::string& job, int64_t version);
  // Of a job whose shards here have backups: by how many versions these are behind, at most.
  void ShowBackupLag(const std::string& job, int64_t versions);
  // Of a job whose steps are judged.
  void ShowVerdict(const std::string& job, double loss_scale, int64_t skips_in_row);
  // Memory of the job's shards here.
  void ShowBytes(const std::string& job, int64_t bytes);
  void ForgetJob(const std::string& job);
  // For one more thread; lives as long as `metrics`. Any thread.
  ShardCounts& AddShardThread();
  // Of all threads.
  int64_t pushes() const;
  // For a shard of `job`; what it counts is shown while somebody holds it. Any thread.
  std::shared_ptr<JobCounts> AddShard(std::string job, std::vector<std::string> workers);

 private:
  class ShardCountsOfAll;
  class JobCountsOfAll;

  prometheus::Gauge& VersionOf(const std::string& job);
  prometheus::Gauge& BackupLagOf(const std::string& job);
  prometheus::Gauge& LossScaleOf(const std::string& job);
  prometheus::Gauge& SkipsInRowOf(const std::string& job);
  prometheus::Gauge& BytesOf(const std::string& job);

  Metrics& metrics_;
  LinkGauges links_;
  std::array<prometheus::Counter*, static_cast<size_t>(RefusalReason::kBadPayload) + 1> refused_;
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
