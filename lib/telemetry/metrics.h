// Prometheus metrics of one process: a registry, an HTTP endpoint, and what every process exports.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"

namespace prometheus {
class Collectable;
class Registry;
}  // namespace prometheus

namespace muster {

class HttpServer;

using MetricLabels = std::map<std::string, std::string>;

// Thread-safe, but Serve() is for one thread, once. Metrics live as long as this object, unless
// they are removed; look them up once, then observe: no lock on a counter's path.
class Metrics {
 public:
  // `build`: labels of muster_build_info beside the version.
  explicit Metrics(MetricLabels build = {});
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
  void Add(std::shared_ptr<const prometheus::Collectable> others) ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets one labelled metric (of a job that ended, of a peer that is gone). The reference must
  // not be used after.
  void Remove(const std::string& name, prometheus::Counter& counter);
  void Remove(const std::string& name, prometheus::Gauge& gauge);
  void Remove(const std::string& name, prometheus::Histogram& histogram);

  // 100 us to half an hour, 16 buckets: no wait of a healthy cluster is longer than the last one.
  static std::vector<double> DurationBuckets();

  // Starts http://<address>/metrics; `address` is "host:port", port 0 picks a free one.
  // INVALID_ARGUMENT where it is no address, UNAVAILABLE when it cannot bind.
  absl::Status Serve(const std::string& address);
  // "http://127.0.0.1:43121/metrics"; "" before Serve().
  std::string url() const;

  // The text exposition, as the endpoint would answer.
  std::string Render() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Collectables = std::vector<std::shared_ptr<const prometheus::Collectable>>;

  const std::shared_ptr<prometheus::Registry> registry_;
  mutable absl::Mutex mu_;
  Collectables others_ ABSL_GUARDED_BY(mu_);  // beside the registry; the process is the first
  std::unique_ptr<HttpServer> server_;
  std::string host_;  // as others reach it
};

}  // namespace muster
