// When this process's certificate ends.
#pragma once

#include <memory>
#include <string>

#include "prometheus/collectable.h"

namespace muster {

// muster_tls_certificate_expiry_timestamp_seconds, of the certificate in `folder` (see TlsFolder)
// as it is when somebody asks: it is renewed there. No series while it cannot be read.
std::shared_ptr<const prometheus::Collectable> CertificateMetrics(const std::string& folder);

}  // namespace muster
