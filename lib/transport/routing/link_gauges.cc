#include "lib/transport/routing/link_gauges.h"

#include <glog/logging.h>

#include "absl/strings/str_cat.h"
#include "lib/log/log_scope.h"

namespace muster {
namespace {

constexpr char kName[] = "muster_transport_info";

MetricLabels LabelsOf(absl::string_view peer, const LinkDescription& link) {
  return {{"peer", std::string(peer)},
          {"transport", link.transport},
          {"network", link.network},
          {"device", link.device},
          {"connections", absl::StrCat(link.connections)},
          {"device_memory", link.device_memory ? "true" : "false"},
          {"fallback", link.fallback}};
}

std::string InWords(const LinkDescription& link) {
  std::string text = link.transport;
  if (!link.network.empty()) absl::StrAppend(&text, " over ", link.network);
  if (!link.device.empty()) absl::StrAppend(&text, " on ", link.device);
  if (link.connections != 1) absl::StrAppend(&text, ", ", link.connections, " connections");
  if (link.device_memory) absl::StrAppend(&text, ", GPU memory directly");
  if (!link.fallback.empty()) absl::StrAppend(&text, " (", link.fallback, ")");
  return text;
}

}  // namespace

void LinkGauges::Show(absl::string_view job, absl::string_view peer, const LinkDescription& link) {
  const MetricLabels labels = LabelsOf(peer, link);
  {
    absl::MutexLock lock(&mu_);
    Shown& shown = shown_[labels];
    if (!shown.jobs.emplace(job).second) return;
    if (shown.gauge == nullptr) {
      shown.gauge =
          &metrics_.Gauge(kName, "1, with what carries the messages to a peer as labels.", labels);
      shown.gauge->Set(1);
    }
    Drop(job, peer, labels);
  }
  const LogScope scope({.job = std::string(job)});
  LOG(INFO) << (job.empty() ? "" : absl::StrCat(job, ": ")) << "the link to " << peer << " is "
            << InWords(link);
}

void LinkGauges::Forget(absl::string_view job) {
  absl::MutexLock lock(&mu_);
  Drop(job, "", {});
}

void LinkGauges::Drop(absl::string_view job, absl::string_view peer, const MetricLabels& kept) {
  for (auto it = shown_.begin(); it != shown_.end();) {
    auto& [labels, shown] = *it;
    const bool concerned = labels != kept && (peer.empty() || labels.at("peer") == peer);
    if (const auto found = shown.jobs.find(job); concerned && found != shown.jobs.end()) {
      shown.jobs.erase(found);
    }
    if (shown.jobs.empty()) {
      metrics_.Remove(kName, *shown.gauge);
      it = shown_.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace muster
