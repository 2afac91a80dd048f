// Says which transport carries each link: in the log, and as muster_transport_info at /metrics.
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

// A gauge that is always 1, with labels peer, transport, network, device, connections,
// device_memory and fallback: as many as the jobs of this process have peers. Thread-safe;
// `metrics` outlives it.
class LinkGauges {
 public:
  explicit LinkGauges(Metrics& metrics) : metrics_(metrics) {}

  // What carries `job`'s messages to `peer` from now on. Logs it once.
  void Show(absl::string_view job, absl::string_view peer, const LinkDescription& link)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The job's links are closed; gauges that no other job shows disappear.
  void Forget(absl::string_view job) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Shown {
    prometheus::Gauge* gauge = nullptr;
    std::set<std::string, std::less<>> jobs;
  };

  // Takes `job` off every gauge of `peer` ("": of any) but the one with `kept`.
  void Drop(absl::string_view job, absl::string_view peer, const MetricLabels& kept)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Metrics& metrics_;
  absl::Mutex mu_;
  std::map<MetricLabels, Shown> shown_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
