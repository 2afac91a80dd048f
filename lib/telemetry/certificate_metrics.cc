#include "lib/telemetry/certificate_metrics.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "lib/security/certificate.h"
#include "prometheus/client_metric.h"
#include "prometheus/metric_family.h"
#include "prometheus/metric_type.h"

namespace muster {
namespace {

prometheus::MetricFamily Gauge(const char* name, const char* help, double value) {
  prometheus::ClientMetric metric;
  metric.gauge.value = value;
  return {name, help, prometheus::MetricType::Gauge, {metric}};
}

double Seconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

class CertificateFiles : public prometheus::Collectable {
 public:
  CertificateFiles(TlsFolder folder, Role role, TlsServer* server)
      : folder_(std::move(folder)), role_(role), server_(server) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families = {
        Gauge("muster_tls_files_faulty",
              "1 if the files of --tls cannot be used: the earlier ones stay in use until they "
              "expire.",
              CheckFiles(folder_, role_).ok() ? 0 : 1)};
    std::ifstream file(folder_.certificate(), std::ios::binary);
    const std::string pem((std::istreambuf_iterator<char>(file)), {});
    const auto certificate = ReadCertificate(pem);
    absl::Time ends = server_ != nullptr ? server_->ends() : absl::InfiniteFuture();
    if (certificate.ok()) {
      ends = std::min(ends, certificate->ends);
      families.push_back(Gauge("muster_tls_certificate_begin_timestamp_seconds",
                               "Since when the certificate of this process is in force.",
                               Seconds(certificate->begins)));
    }
    if (ends < absl::InfiniteFuture()) {
      families.push_back(Gauge("muster_tls_certificate_expiry_timestamp_seconds",
                               "When the certificate of this process ends.", Seconds(ends)));
    }
    return families;
  }

 private:
  const TlsFolder folder_;
  const Role role_;
  TlsServer* const server_;  // null: this process is not a server
};

}  // namespace

std::shared_ptr<const prometheus::Collectable> CertificateMetrics(const std::string& folder,
                                                                  Role role, TlsServer* server) {
  return std::make_shared<const CertificateFiles>(TlsFolder{folder}, role, server);
}

}  // namespace muster
