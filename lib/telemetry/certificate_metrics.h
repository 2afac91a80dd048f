// Exports when this process's certificate expires, and whether its files are usable.
#pragma once

#include <memory>
#include <string>

#include "lib/security/identity.h"
#include "lib/security/tls_folder.h"
#include "prometheus/collectable.h"

namespace muster {

// Reads the files in `folder` (see TlsFolder) at each scrape, because they are renewed there.
// - muster_tls_certificate_expiry_timestamp_seconds: when the certificate expires or, if that is
//   earlier, the one that `server` shows. The server keeps its certificate while files are faulty.
//   No series if neither is known.
// - muster_tls_certificate_begin_timestamp_seconds: from when it is valid, which gives its
//   lifetime.
// - muster_tls_files_faulty: 1 while a process of `role` could not use the files.
//
// `server` may be null; otherwise it must outlive the result.
std::shared_ptr<const prometheus::Collectable> CertificateMetrics(const std::string& folder,
                                                                  Role role,
                                                                  TlsServer* server = nullptr);

}  // namespace muster
