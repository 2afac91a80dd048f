// Prometheus metrics of one process: a registry, an HTTP endpoint, and what every process exports.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"

namespace prometheus {
class Collectable;
class Exposer;
class Registry;
}  // namespace prometheus

namespace muster {

using MetricLabels = std::map<std::string, std::string>;

// Thread-safe, but Add() and Serve() are for one thread, before anybody calls Render(). Metrics
// live as long as this object; look them up once, then observe: no lock on a counter's path.
class Metrics {
 public:
  Metrics();
  ~Metrics();

  prometheus::Counter& Counter(const std::string& name, const std::string& help,
                               const MetricLabels& labels = {});
  prometheus::Gauge& Gauge(const std::string& name, const std::string& help,
                           const MetricLabels& labels = {});
  // Buckets default to DurationBuckets().
  prometheus::Histogram& Histogram(const std::string& name, const std::string& help,
                                   const MetricLabels& labels = {},
                                   const std::vector<double>& buckets = DurationBuckets());
  // Metrics that somebody else keeps, as they are when they are scraped.
  void Add(std::shared_ptr<const prometheus::Collectable> others);
  // Forgets one labelled gauge (a job that ended). The reference must not be used after.
  void RemoveGauge(const std::string& name, prometheus::Gauge& gauge);

  // 100 us to 60 s, 14 buckets.
  static std::vector<double> DurationBuckets();

  // Starts http://<address>/metrics; `address` is "host:port", port 0 picks a free one. UNAVAILABLE
  // when it cannot bind.
  absl::Status Serve(const std::string& address);
  // "http://127.0.0.1:43121/metrics"; "" before Serve().
  std::string url() const;

  // The text exposition, as the endpoint would answer.
  std::string Render() const;

 private:
  std::shared_ptr<prometheus::Registry> registry_;
  // Beside the registry; the process is the first.
  std::vector<std::shared_ptr<const prometheus::Collectable>> others_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::string host_;        // as others reach it
  std::string bound_host_;  // as this process does
};

}  // namespace muster
