// What a worker exports at /metrics.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/link_gauges.h"
#include "lib/transport/transport.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"

namespace muster {

// Of one link: to a shard, or to a neighbour in the ring.
struct LinkMetrics {
  prometheus::Counter& sent_bytes;
  prometheus::Counter& received_bytes;
  prometheus::Gauge& inflight_bytes;
};

// References into `metrics`, which outlives this: looked up once, observed without a lock.
class WorkerMetrics {
 public:
  explicit WorkerMetrics(Metrics& metrics);

  // What carries the messages to `peer` ("ps-0/1": the member and which of its shard threads).
  // Logs it once.
  void ShowLink(const std::string& peer, const LinkDescription& link);
  void ForgetLinks();  // the job has ended
  // The same objects for the same peer.
  LinkMetrics Link(const std::string& peer);
  // How long a phase of the last start took: data, graph, memory, compile.
  void ShowStartPhase(const std::string& phase, absl::Duration time);

 private:
  Metrics& metrics_;
  LinkGauges links_;

 public:
  prometheus::Counter& steps;
  prometheus::Counter& missed_steps;  // with backup workers: overtaken by the others
  prometheus::Counter& samples;
  prometheus::Histogram& step_duration;
  prometheus::Histogram& data_duration;      // waiting for the batch
  prometheus::Histogram& compute_duration;   // forward and backward, less the waiting in it
  prometheus::Histogram& wait_duration;      // waiting for parameters
  prometheus::Histogram& evaluate_duration;  // one evaluation
  prometheus::Gauge& loss;
  prometheus::Gauge& gradient_norm;
  prometheus::Gauge& learning_rate;
  prometheus::Counter& push_bytes;         // payloads, as they are on the wire
  prometheus::Counter& params_bytes;       // likewise
  prometheus::Gauge& queued_chunks;        // wait for credit
  prometheus::Gauge& queued_bytes;         // that they have to send
  prometheus::Histogram& credit_duration;  // from final to sent, of a chunk
  prometheus::Counter& nonfinite_losses;
  prometheus::Gauge& loss_scale;  // of the last finished step; 0 but for fp16
  prometheus::Counter& skipped_steps;
};

}  // namespace muster
