#include "lib/telemetry/certificate_metrics.h"

#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "lib/security/certificate.h"
#include "lib/security/tls_folder.h"
#include "prometheus/client_metric.h"
#include "prometheus/metric_family.h"
#include "prometheus/metric_type.h"

namespace muster {
namespace {

class CertificateExpiry : public prometheus::Collectable {
 public:
  explicit CertificateExpiry(std::string path) : path_(std::move(path)) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::ifstream file(path_, std::ios::binary);
    const std::string pem((std::istreambuf_iterator<char>(file)), {});
    const auto certificate = ReadCertificate(pem);
    if (!certificate.ok()) return {};
    prometheus::ClientMetric metric;
    metric.gauge.value = absl::ToDoubleSeconds(certificate->ends - absl::UnixEpoch());
    return {{"muster_tls_certificate_expiry_timestamp_seconds",
             "When the certificate of this process ends.",
             prometheus::MetricType::Gauge,
             {metric}}};
  }

 private:
  const std::string path_;
};

}  // namespace

std::shared_ptr<const prometheus::Collectable> CertificateMetrics(const std::string& folder) {
  return std::make_shared<const CertificateExpiry>(TlsFolder{folder}.certificate());
}

}  // namespace muster
