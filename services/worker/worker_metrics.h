// What a worker exports at /metrics.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "lib/exchange/exchange_metrics.h"
#include "lib/telemetry/metrics.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"

namespace muster {

// References into `metrics`, which outlives this: looked up once, observed without a lock.
class WorkerMetrics {
 public:
  explicit WorkerMetrics(Metrics& metrics);

  // How long a phase of the last start took: data, graph, memory, compile.
  void ShowStartPhase(const std::string& phase, absl::Duration time);
  // FLOP/s that the devices in use could do at best; 0: not known, and there is no such series.
  void ShowPeak(double flops);
  // Which job the other metrics are of, while there is one.
  void ShowJob(const std::string& job);
  void ForgetJob(const std::string& job);
  // For what counts by itself.
  Metrics& all() const { return metrics_; }

 private:
  prometheus::Gauge& JobInfo(const std::string& job);

  Metrics& metrics_;

 public:
  ExchangeMetrics exchange;
  prometheus::Counter& steps;
  prometheus::Counter& missed_steps;  // with backup workers: overtaken by the others
  prometheus::Counter& samples;
  prometheus::Counter& flops;  // of the model, forward and backward; what is recomputed is not
  prometheus::Histogram& step_duration;
  prometheus::Histogram& data_duration;      // waiting for the batch
  prometheus::Histogram& compute_duration;   // forward and backward, less the waiting in it
  prometheus::Histogram& wait_duration;      // waiting for parameters
  prometheus::Histogram& evaluate_duration;  // one evaluation
  prometheus::Gauge& loss;
  prometheus::Gauge& gradient_norm;
  prometheus::Gauge& learning_rate;
  prometheus::Counter& nonfinite_losses;
  prometheus::Gauge& loss_scale;  // of the last finished step; 0 but for fp16
  prometheus::Counter& skipped_steps;
  prometheus::Counter& restore_bytes;  // of all-reduce jobs: others restore their ps
  prometheus::Histogram& restore_duration;
};

}  // namespace muster
