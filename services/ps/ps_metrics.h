// What a parameter server exports at /metrics.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/telemetry/metrics.h"
#include "lib/transport/wire.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"

namespace muster {

// Durations seen by a thread that must not take the lock of a prometheus::Histogram: Observe()
// never waits, another thread calls Drain() now and then.
class DurationTally {
 public:
  DurationTally() : bounds_(Metrics::DurationBuckets()), counts_(bounds_.size() + 1) {}

  void Observe(int64_t nanoseconds);
  void Drain(prometheus::Histogram& histogram);

 private:
  const std::vector<double> bounds_;  // seconds
  std::vector<std::atomic<int64_t>> counts_;
  std::atomic<int64_t> nanoseconds_ = 0;
};

// References into `metrics`, which outlives this: looked up once. Counters and gauges take no lock.
class PsMetrics {
 public:
  explicit PsMetrics(Metrics& metrics);

  prometheus::Counter& refused(RefusalReason reason) {
    return *refused_[static_cast<size_t>(reason)];
  }
  void ShowTransport(const std::string& name);
  void ShowVersion(const std::string& job, int64_t version);
  // Of a job whose steps are judged.
  void ShowVerdict(const std::string& job, double loss_scale, int64_t skips_in_row);
  void ForgetJob(const std::string& job);
  // Moves what the shard threads tallied into the histogram.
  void Drain() { apply_tally.Drain(apply_duration_); }

 private:
  prometheus::Gauge& VersionOf(const std::string& job);
  prometheus::Gauge& LossScaleOf(const std::string& job);
  prometheus::Gauge& SkipsInRowOf(const std::string& job);

  Metrics& metrics_;
  std::array<prometheus::Counter*, static_cast<size_t>(RefusalReason::kBadHeader) + 1> refused_;
  prometheus::Histogram& apply_duration_;

 public:
  prometheus::Counter& pushes;
  prometheus::Counter& push_bytes;
  prometheus::Counter& params_bytes;
  prometheus::Counter& duplicate_pushes;
  prometheus::Counter& nonfinite_gradients;
  prometheus::Counter& skipped_steps;
  prometheus::Gauge& shard_bytes;
  prometheus::Histogram& snapshot_duration;
  DurationTally apply_tally;
};

}  // namespace muster
