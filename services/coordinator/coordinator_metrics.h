// What the coordinator exports at /metrics.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "lib/telemetry/metrics.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Not thread-safe but for the public references, which are.
class CoordinatorMetrics {
 public:
  explicit CoordinatorMetrics(Metrics* metrics);

  void CountTransition(v1::JobState from, v1::JobState to);
  void SetJobs(v1::JobState state, int count);
  void SetMembers(v1::Role role, int count);
  void SetJobProgress(const std::string& job, const v1::JobProgress& progress);
  void CheckpointCommitted(const std::string& job, double unix_seconds);
  void ForgetJob(const std::string& job);

  prometheus::Gauge& term;
  prometheus::Histogram& store_commit_seconds;
  prometheus::Histogram& checkpoint_seconds;
  prometheus::Counter& checkpoint_bytes;
  prometheus::Counter& checkpoint_failures;

 private:
  prometheus::Gauge& JobGauge(const char* name, const char* help, const std::string& job);

  Metrics* const metrics_;
  // By job, then by metric name.
  absl::flat_hash_map<std::string, absl::flat_hash_map<std::string, prometheus::Gauge*>> by_job_;
};

}  // namespace muster
