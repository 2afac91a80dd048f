// Prometheus metrics of one process: a registry, an HTTP endpoint, and metrics that every process
// exports.
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

// The metrics of a process. Thread-safe, except that only one thread may call Serve(), once.
// Metrics live as long as this object, unless they are removed. Look them up once, then observe:
// counting takes no lock.
class Metrics {
 public:
  // `build`: labels of muster_build_info.
  explicit Metrics(const MetricLabels& build = {});
  ~Metrics();

  prometheus::Counter& Counter(const std::string& name, const std::string& help,
                               const MetricLabels& labels = {});
  prometheus::Gauge& Gauge(const std::string& name, const std::string& help,
                           const MetricLabels& labels = {});
  // `buckets`: upper bounds.
  prometheus::Histogram& Histogram(const std::string& name, const std::string& help,
                                   const MetricLabels& labels = {},
                                   const std::vector<double>& buckets = DurationBuckets());
  // Adds metrics kept elsewhere, which are collected at each scrape.
  void Add(std::shared_ptr<const prometheus::Collectable> others) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes one labelled metric (of a job that ended, or a peer that is gone). The reference must
  // not be used afterwards.
  void Remove(const std::string& name, prometheus::Counter& counter);
  void Remove(const std::string& name, prometheus::Gauge& gauge);
  void Remove(const std::string& name, prometheus::Histogram& histogram);

  // 16 buckets from 100 us to half an hour. No wait of a healthy cluster exceeds the last one.
  static std::vector<double> DurationBuckets();

  // Starts http://<address>/metrics. `address` is "host:port"; port 0 picks a free one. Returns
  // INVALID_ARGUMENT if it is not an address, UNAVAILABLE if it cannot be bound.
  absl::Status Serve(const std::string& address);
  // Returns "http://127.0.0.1:43121/metrics", or "" before Serve().
  std::string url() const;

  // Returns the text exposition, as the endpoint serves it.
  std::string Render() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Collectables = std::vector<std::shared_ptr<const prometheus::Collectable>>;

  const std::shared_ptr<prometheus::Registry> registry_;
  mutable absl::Mutex mu_;
  Collectables others_
      ABSL_GUARDED_BY(mu_);  // besides the registry; the first is the process's own
  std::unique_ptr<HttpServer> server_;
  std::string host_;  // under which others reach it
};

}  // namespace muster
