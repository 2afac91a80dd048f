#include "services/coordinator/records/gauge_snapshot.h"

#include <utility>

namespace muster {

void GaugeSnapshot::Add(const std::string& name, const std::string& help,
                        const MetricLabels& labels, double value) {
  prometheus::MetricFamily& family = next_[name];
  family.name = name;
  family.help = help;
  family.type = prometheus::MetricType::Gauge;
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  for (const auto& [label, content] : labels) metric.label.push_back({label, content});
  metric.gauge.value = value;
}

void GaugeSnapshot::Publish() {
  std::vector<prometheus::MetricFamily> shown;
  for (auto& [name, family] : next_) shown.push_back(std::move(family));
  next_.clear();
  absl::MutexLock lock(&mu_);
  shown_ = std::move(shown);
}

std::vector<prometheus::MetricFamily> GaugeSnapshot::Collect() const {
  absl::MutexLock lock(&mu_);
  return shown_;
}

}  // namespace muster
