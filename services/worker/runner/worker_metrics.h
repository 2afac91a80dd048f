// The metrics that a worker exports at /metrics.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "lib/exchange/exchange_metrics.h"
#include "lib/telemetry/metrics.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// Holds references into `metrics`, which outlives this object. Looks up the public metrics
// once; updating them takes no lock.
class WorkerMetrics {
 public:
  explicit WorkerMetrics(Metrics& metrics);

  // Sets the duration of one phase of the last start: data, graph, memory or compile.
  void ShowStartPhase(const std::string& phase, absl::Duration time);
  // Sets the peak FLOP/s of the devices in use. If it is 0 (unknown), the series is removed.
  void ShowPeak(double flops);
  // Adds what reading samples cost between two results of InputPipeline::timing().
  void CountInput(const v1::InputTiming& before, const v1::InputTiming& now);
  // Export or remove the name of the job that the other metrics describe.
  void ShowJob(const std::string& job);
  void ForgetJob(const std::string& job);
  // Returns the registry, for components that register their own metrics.
  Metrics& all() const { return metrics_; }

 private:
  prometheus::Gauge& JobInfo(const std::string& job);

  Metrics& metrics_;

 public:
  ExchangeMetrics exchange;
  prometheus::Counter& steps;
  prometheus::Counter& missed_steps;  // with backup workers: closed by the others without this one
  prometheus::Counter& samples;
  prometheus::Counter& flops;  // of the model, forward and backward, without recomputation
  prometheus::Histogram& step_duration;
  prometheus::Histogram& data_duration;      // waiting for the batch
  prometheus::Histogram& compute_duration;   // forward and backward, without waiting
  prometheus::Histogram& wait_duration;      // waiting for parameters
  prometheus::Histogram& evaluate_duration;  // one evaluation
  prometheus::Gauge& loss;
  prometheus::Gauge& gradient_norm;
  prometheus::Gauge& learning_rate;
  prometheus::Counter& nonfinite_losses;
  prometheus::Gauge& loss_scale;  // of the last finished step; 0 unless fp16
  prometheus::Counter& skipped_steps;
  prometheus::Counter& input_open_seconds;  // these six: of all threads that read samples
  prometheus::Counter& input_read_seconds;
  prometheus::Counter& input_decode_seconds;
  prometheus::Counter& input_resample_seconds;
  prometheus::Counter& input_augment_seconds;
  prometheus::Counter& input_room_seconds;
  prometheus::Counter& input_samples;
  prometheus::Counter& input_read_bytes;
  prometheus::Counter& input_substituted;
  prometheus::Counter& restore_bytes;  // only all-reduce jobs; in other jobs the ps restore
  prometheus::Histogram& restore_duration;
};

}  // namespace muster
