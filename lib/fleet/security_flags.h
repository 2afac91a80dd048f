// A daemon's security, as its command line says: certificates, --insecure, or this host only.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "lib/fleet/channel.h"
#include "lib/security/identity.h"
#include "lib/security/tls_folder.h"
#include "lib/telemetry/metrics.h"

namespace muster {

struct DaemonSecurity {
  std::string tls;        // --tls: a folder as described at TlsFolder; "": plaintext
  bool insecure = false;  // --insecure

  // Returns whether the process may be reached from, or connect to, other hosts. That requires
  // certificates, or --insecure as explicit consent.
  bool reaches_beyond_host() const { return !tls.empty() || insecure; }
};

// Reads --tls and --insecure. Returns INVALID_ARGUMENT if both are given. Logs a warning if
// --insecure is given.
absl::StatusOr<DaemonSecurity> SecurityFromFlags();

// Exports muster_insecure and, with certificates, CertificateMetrics(security.tls, role, server).
// `metrics` and `server` must exist until the process ends.
void ExportSecurity(const DaemonSecurity& security, Role role, Metrics& metrics,
                    TlsServer* server = nullptr);

// Returns the address to listen at: `flag` if it is given. Otherwise `port`, on all interfaces if
// `security` reaches beyond this host, else on loopback. Returns INVALID_ARGUMENT if `flag` is
// beyond this host and `security` does not allow that.
absl::StatusOr<std::string> ListenAddress(const DaemonSecurity& security, const std::string& flag,
                                          int port);

// Returns INVALID_ARGUMENT if the coordinator is beyond this host and `security` does not allow
// that, and UNAVAILABLE (reason "CERTIFICATE_FILES") if the folder has no certificate. Otherwise
// returns the result of SecureTarget().
absl::StatusOr<CoordinatorTarget> TargetFor(const DaemonSecurity& security,
                                            const std::string& coordinator);

// Returns whether `host_port` is certain to be on this host. Asks no name service.
bool IsLoopback(const std::string& host_port);

}  // namespace muster
