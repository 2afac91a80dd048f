// What the command line of a daemon says of its security: certificates, or --insecure, or this host
// alone.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "lib/fleet/channel.h"
#include "lib/security/identity.h"
#include "lib/security/tls_folder.h"
#include "lib/telemetry/metrics.h"

namespace muster {

struct DaemonSecurity {
  std::string tls;        // --tls: a folder as TlsFolder has it; "": plaintext
  bool insecure = false;  // --insecure

  // Strangers may be on the way, or at the door: with certificates they are kept out, without them
  // somebody must have said that this is meant.
  bool reaches_beyond_host() const { return !tls.empty() || insecure; }
};

// INVALID_ARGUMENT: both were given. Warns of --insecure.
absl::StatusOr<DaemonSecurity> SecurityFromFlags();

// muster_insecure, and the certificate's metrics where there is one: of a process of this role, and
// of what `server` shows, if it is not null. Both must stay until the process ends.
void ExportSecurity(const DaemonSecurity& security, Role role, Metrics& metrics,
                    TlsServer* server = nullptr);

// Where to listen: `flag` as it was given, or, where it is "", at `port` on all interfaces if the
// security reaches beyond this host, else on loopback. INVALID_ARGUMENT: `flag` is beyond this host
// and the security is not.
absl::StatusOr<std::string> ListenAddress(const DaemonSecurity& security, const std::string& flag,
                                          int port);

// INVALID_ARGUMENT: the coordinator is beyond this host and the security is not; else
// SecureTarget()'s.
absl::StatusOr<CoordinatorTarget> TargetFor(const DaemonSecurity& security,
                                            const std::string& coordinator);

// Whether a host:port can only be on this host, without asking a name service.
bool IsLoopback(const std::string& host_port);

}  // namespace muster
