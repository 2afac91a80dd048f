// What a parameter server exports at /metrics.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lib/telemetry/metrics.h"
#include "lib/transport/link_gauges.h"
#include "lib/transport/transport.h"
#include "lib/transport/wire.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"

namespace muster {

// Quantities seen by a thread that must not take the lock of a prometheus::Histogram: Observe()
// never waits, another thread calls Drain() now and then.
class Tally {
 public:
  // `unit`: what an observed 1 is in the histogram, whose bucket boundaries are `bounds`.
  Tally(std::vector<double> bounds, double unit)
      : bounds_(std::move(bounds)), unit_(unit), counts_(bounds_.size() + 1) {}

  void Observe(int64_t quantity);
  void Drain(prometheus::Histogram& histogram);

 private:
  const std::vector<double> bounds_;
  const double unit_;
  std::vector<std::atomic<int64_t>> counts_;
  std::atomic<int64_t> sum_ = 0;
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
  // Of a job whose steps are judged.
  void ShowVerdict(const std::string& job, double loss_scale, int64_t skips_in_row);
  void ForgetJob(const std::string& job);
  // Moves what the shard threads tallied into the histograms.
  void Drain() {
    apply_tally.Drain(apply_duration_);
    staleness_tally.Drain(push_staleness_);
  }

 private:
  prometheus::Gauge& VersionOf(const std::string& job);
  prometheus::Gauge& LossScaleOf(const std::string& job);
  prometheus::Gauge& SkipsInRowOf(const std::string& job);

  Metrics& metrics_;
  LinkGauges links_;
  std::array<prometheus::Counter*, static_cast<size_t>(RefusalReason::kBadPayload) + 1> refused_;
  prometheus::Histogram& apply_duration_;
  prometheus::Histogram& push_staleness_;

 public:
  prometheus::Counter& pushes;
  prometheus::Counter& push_bytes;
  prometheus::Counter& params_bytes;
  prometheus::Counter& duplicate_pushes;
  prometheus::Counter& late_pushes;
  prometheus::Counter& nonfinite_gradients;
  prometheus::Counter& skipped_steps;
  prometheus::Gauge& shard_bytes;
  prometheus::Histogram& snapshot_duration;
  Tally apply_tally;      // nanoseconds
  Tally staleness_tally;  // steps
};

}  // namespace muster
