#include "lib/exchange/exchange_metrics.h"

#include "lib/limits/limits.h"

namespace muster {
namespace {

constexpr char kSentBytes[] = "muster_worker_link_sent_bytes_total";
constexpr char kReceivedBytes[] = "muster_worker_link_received_bytes_total";
constexpr char kInflightBytes[] = "muster_worker_link_inflight_bytes";

}  // namespace

ExchangeMetrics::ExchangeMetrics(Metrics& metrics)
    : metrics_(metrics),
      links_(metrics),
      push_bytes(metrics.Counter("muster_worker_push_bytes_total",
                                 "Gradient bytes handed to the transport, packed as they travel")),
      params_bytes(metrics.Counter("muster_worker_params_bytes_total",
                                   "Parameter bytes received, as they travelled")),
      queued_chunks(metrics.Gauge("muster_worker_queued_chunks",
                                  "Chunks that are final and wait for credit of their link")),
      queued_bytes(metrics.Gauge("muster_worker_queued_bytes", "Bytes of those chunks")),
      credit_duration(metrics.Histogram("muster_worker_credit_wait_duration_seconds",
                                        "Time that a final chunk waited for credit of its link")),
      queue_full(metrics.Counter(
          "muster_worker_send_queue_full_seconds_total",
          "Time in which some chunk that was final waited for credit of its link")) {}

prometheus::Histogram& ExchangeMetrics::PullDuration(const std::string& transport) {
  return metrics_.Histogram("muster_worker_pull_duration_seconds",
                            "From the sending of a chunk's gradient, or a fetch, until its "
                            "parameters are here; it waits for the other workers' where steps do",
                            {{"transport", transport}});
}

void ExchangeMetrics::ShowLink(const std::string& job, const std::string& peer,
                               const LinkDescription& link) {
  links_.Show(job, peer, link);
  absl::MutexLock lock(&mu_);
  shown_[peer] = link;
}

void ExchangeMetrics::ForgetLinks(const std::string& job) {
  links_.Forget(job);
  absl::MutexLock lock(&mu_);
  shown_.clear();
}

// A link that carries only messages between shards has no counters.
void ExchangeMetrics::AddLinksTo(v1::JobReport& report) {
  absl::MutexLock lock(&mu_);
  for (const auto& [peer, link] : shown_) {
    if (report.links_size() == limits::kLinksReportedMax) break;
    v1::LinkReport& told = *report.add_links();
    told.set_peer(peer);
    told.set_transport(link.transport);
    told.set_security(link.security);
    told.set_network(link.network);
    told.set_device(link.device);
    told.set_fallback(link.fallback);
    if (!holders_.contains(peer)) continue;
    const LinkMetrics counted = Find(peer);
    told.set_sent_bytes(static_cast<int64_t>(counted.sent_bytes.Value()));
    told.set_received_bytes(static_cast<int64_t>(counted.received_bytes.Value()));
  }
  report.set_links_left_out(static_cast<int32_t>(shown_.size()) - report.links_size());
}

LinkMetrics ExchangeMetrics::Link(const std::string& peer) {
  absl::MutexLock lock(&mu_);
  ++holders_[peer];
  LinkMetrics link = Find(peer);
  link.shown = std::shared_ptr<const void>(this, [peer, this](const void*) { Release(peer); });
  return link;
}

LinkMetrics ExchangeMetrics::Find(const std::string& peer) {
  const MetricLabels labels = {{"peer", peer}};
  return {
      .sent_bytes = metrics_.Counter(kSentBytes, "Gradient bytes handed to one link", labels),
      .received_bytes =
          metrics_.Counter(kReceivedBytes, "Parameter bytes received over one link", labels),
      .inflight_bytes = metrics_.Gauge(
          kInflightBytes, "Gradient bytes being sent over one link: at most its credit", labels),
      .shown = nullptr};
}

void ExchangeMetrics::Release(const std::string& peer) {
  absl::MutexLock lock(&mu_);
  const auto holders = holders_.find(peer);
  if (--holders->second > 0) return;
  holders_.erase(holders);
  const LinkMetrics link = Find(peer);
  metrics_.Remove(kSentBytes, link.sent_bytes);
  metrics_.Remove(kReceivedBytes, link.received_bytes);
  metrics_.Remove(kInflightBytes, link.inflight_bytes);
}

}  // namespace muster
