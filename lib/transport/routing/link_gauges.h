// Reports the transport of each link: in the log, and as muster_transport_info at /metrics.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/core/transport.h"
#include "prometheus/gauge.h"

namespace muster {

// A gauge per peer of this process's jobs, with the value 1 and the labels peer, transport,
// network, device, connections, device_memory and fallback. Thread-safe. `metrics` must outlive it.
class LinkGauges {
 public:
  explicit LinkGauges(Metrics& metrics) : metrics_(metrics) {}

  // Sets the link that carries `job`'s messages to `peer` from now on. Logs each link once for each
  // job.
  void Show(absl::string_view job, absl::string_view peer, const LinkDescription& link)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the gauges of `job`, except those that another job shows. Call when the job's links are
  // closed.
  void Forget(absl::string_view job) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Shown {
    prometheus::Gauge* gauge = nullptr;
    std::set<std::string, std::less<>> jobs;
  };

  // Removes `job` from every gauge of `peer` ("" means every peer) except the gauge with the labels
  // `kept`.
  void Drop(absl::string_view job, absl::string_view peer, const MetricLabels& kept)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Metrics& metrics_;
  absl::Mutex mu_;
  std::map<MetricLabels, Shown> shown_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
