// What an exchange exports at /metrics, and reports of its links.
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

// Of one link: to a shard, or to a neighbour in the ring. They are shown while somebody holds them,
// or a copy.
struct LinkMetrics {
  prometheus::Counter& sent_bytes;
  prometheus::Counter& received_bytes;
  prometheus::Gauge& inflight_bytes;
  std::shared_ptr<const void> shown;
};

// References into `metrics`, which outlives this: looked up once.
class ExchangeMetrics {
 public:
  explicit ExchangeMetrics(Metrics& metrics);

  // Shows the link that carries the messages of `job` to `peer` ("ps-0/1": the member and the
  // number of its shard thread). Logs it once.
  void ShowLink(const std::string& job, const std::string& peer, const LinkDescription& link)
      ABSL_LOCKS_EXCLUDED(mu_);
  void ForgetLinks(const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);  // they are closed
  // The links that are shown; those beyond limits::kLinksReportedMax are counted.
  void AddLinksTo(v1::JobReport& report) ABSL_LOCKS_EXCLUDED(mu_);
  // From the sending of a chunk's gradient, or a fetch, until its parameters are here, over links
  // of this transport: see LinkDescription.
  prometheus::Histogram& PullDuration(const std::string& transport);
  // The same objects for the same peer, as long as somebody holds them. Not to be held for longer
  // than this lives.
  LinkMetrics Link(const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  LinkMetrics Find(const std::string& peer);
  void Release(const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);

  Metrics& metrics_;
  LinkGauges links_;
  absl::Mutex mu_;
  std::map<std::string, int> holders_ ABSL_GUARDED_BY(mu_);            // of a peer's metrics
  std::map<std::string, LinkDescription> shown_ ABSL_GUARDED_BY(mu_);  // by peer

 public:
  prometheus::Counter& push_bytes;         // payloads, as they are on the wire
  prometheus::Counter& params_bytes;       // likewise
  prometheus::Gauge& queued_chunks;        // wait for credit
  prometheus::Gauge& queued_bytes;         // that they have to send
  prometheus::Histogram& credit_duration;  // from final to sent, of a chunk
  prometheus::Counter& queue_full;         // seconds in which some chunk waited for credit
};

}  // namespace muster
