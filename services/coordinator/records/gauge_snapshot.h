// A set of gauges that is replaced as a whole.
#pragma once

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/synchronization/mutex.h"
#include "lib/telemetry/metrics.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace muster {

// A series that the next snapshot lacks disappears. So the series of jobs and members that are gone
// need no removal. One thread adds and publishes. Any thread collects.
class GaugeSnapshot final : public prometheus::Collectable {
 public:
  // Adds a gauge to the next snapshot. Requires: no other gauge in it has this name and labels.
  void Add(const std::string& name, const std::string& help, const MetricLabels& labels,
           double value);
  // Replaces the snapshot by the gauges that were added since the last call.
  void Publish() ABSL_LOCKS_EXCLUDED(mu_);

  std::vector<prometheus::MetricFamily> Collect() const override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::btree_map<std::string, prometheus::MetricFamily> next_;  // by name
  mutable absl::Mutex mu_;
  std::vector<prometheus::MetricFamily> shown_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
