// When this process's certificate ends, and whether its files are in order.
#pragma once

#include <memory>
#include <string>

#include "lib/security/identity.h"
#include "lib/security/tls_folder.h"
#include "prometheus/collectable.h"

namespace muster {

// Of the files in `folder` (see TlsFolder), as they are when somebody asks: they are renewed there.
// - muster_tls_certificate_expiry_timestamp_seconds, or, where it comes earlier, when the one ends
//   that `server` shows, which keeps what it had while files are faulty; no series while neither is
//   known. muster_tls_certificate_begin_timestamp_seconds: so its lifetime is known.
// - muster_tls_files_faulty: 1 while a process of `role` could not use them.
// `server`, which may be null, must stay as long as this does.
std::shared_ptr<const prometheus::Collectable> CertificateMetrics(const std::string& folder,
                                                                  Role role,
                                                                  TlsServer* server = nullptr);

}  // namespace muster
