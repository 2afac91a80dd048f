// The metrics of an exchange at /metrics, and its reports about links.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/routing/link_gauges.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// The metrics of one link: to a shard, or to a neighbour in the ring. They are exported as long as
// this object or a copy exists.
struct LinkMetrics {
  prometheus::Counter& sent_bytes;
  prometheus::Counter& received_bytes;
  prometheus::Gauge& inflight_bytes;
  std::shared_ptr<const void> shown;
};

// Looks up its metrics in `metrics` once. `metrics` must outlive this object.
class ExchangeMetrics {
 public:
  explicit ExchangeMetrics(Metrics& metrics);

  // Shows the link for messages of `job` to `peer`, and logs it once. A peer looks like "ps-0/1",
  // the member and the number of its shard thread, or like "worker-1" in a ring.
  void ShowLink(const std::string& job, const std::string& peer, const LinkDescription& link)
      ABSL_LOCKS_EXCLUDED(mu_);
  void ForgetLinks(const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);  // the links are closed
  // Adds the shown links to the report. Links beyond limits::kLinksReportedMax are only counted.
  void AddLinksTo(v1::JobReport& report) ABSL_LOCKS_EXCLUDED(mu_);
  // Measures the time from sending a chunk's gradient, or a fetch, until its parameters have
  // arrived. Covers the links of this transport, see LinkDescription.
  prometheus::Histogram& PullDuration(const std::string& transport);
  // Returns the same metrics for the same peer, as long as a copy exists. No copy may outlive this
  // object.
  LinkMetrics Link(const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  LinkMetrics Find(const std::string& peer);
  void Release(const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);

  Metrics& metrics_;
  LinkGauges links_;
  absl::Mutex mu_;
  std::map<std::string, int> holders_ ABSL_GUARDED_BY(mu_);            // number of copies, by peer
  std::map<std::string, LinkDescription> shown_ ABSL_GUARDED_BY(mu_);  // by peer

 public:
  prometheus::Counter& push_bytes;         // bytes of payloads, as they are on the wire
  prometheus::Counter& params_bytes;       // bytes of payloads, as they are on the wire
  prometheus::Gauge& queued_chunks;        // chunks that wait for credit
  prometheus::Gauge& queued_bytes;         // bytes of these chunks
  prometheus::Histogram& credit_duration;  // from final to sent, per chunk
  prometheus::Counter& queue_full;         // seconds in which some chunk waited for credit
};

}  // namespace muster
