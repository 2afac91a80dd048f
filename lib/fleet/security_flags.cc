#include "lib/fleet/security_flags.h"

#include <arpa/inet.h>
#include <glog/logging.h>
#include <netinet/in.h>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "lib/status/status.h"
#include "lib/telemetry/certificate_metrics.h"

ABSL_FLAG(
    std::string, tls, "",
    "folder with this process's tls.crt and tls.key and the authority's ca.crt, which are read "
    "again when they change; empty: no TLS, on this host alone unless --insecure");
ABSL_FLAG(bool, insecure, false,
          "talk beyond this host without TLS: every client that reaches the port has full access");

namespace muster {
namespace {

// Whether `host` is an IPv4 address of loopback. It is parsed, because "127.example.org" is a name.
bool IsLoopbackAddress(const std::string& host) {
  in_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}

}  // namespace

absl::StatusOr<DaemonSecurity> SecurityFromFlags() {
  const DaemonSecurity security{.tls = absl::GetFlag(FLAGS_tls),
                                .insecure = absl::GetFlag(FLAGS_insecure)};
  if (!security.tls.empty() && security.insecure) {
    return absl::InvalidArgumentError("--tls and --insecure exclude each other");
  }
  LOG_IF(WARNING, security.insecure)
      << "--insecure: every client that reaches the coordinator's port has full access, and the "
         "traffic is not encrypted; muster certs init makes certificates for --tls";
  return security;
}

void ExportSecurity(const DaemonSecurity& security, Role role, Metrics& metrics,
                    TlsServer* server) {
  metrics
      .Gauge("muster_insecure",
             "1 if the process was started with --insecure: in plaintext, beyond its host.")
      .Set(security.insecure ? 1 : 0);
  if (!security.tls.empty()) metrics.Add(CertificateMetrics(security.tls, role, server));
}

bool IsLoopback(const std::string& host_port) {
  if (absl::StartsWith(host_port, "unix:")) return true;
  absl::string_view host = absl::string_view(host_port).substr(0, host_port.rfind(':'));
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return host == "localhost" || host == "::1" || IsLoopbackAddress(std::string(host));
}

absl::StatusOr<std::string> ListenAddress(const DaemonSecurity& security, const std::string& flag,
                                          int port) {
  if (flag.empty()) {
    return absl::StrCat(security.reaches_beyond_host() ? "0.0.0.0:" : "127.0.0.1:", port);
  }
  if (security.reaches_beyond_host() || IsLoopback(flag)) return flag;
  return absl::InvalidArgumentError(absl::StrCat(
      flag,
      " can be reached from beyond this host: give certificates (--tls=DIR; muster certs init "
      "makes them), or pass --insecure, or listen on 127.0.0.1"));
}

absl::StatusOr<CoordinatorTarget> TargetFor(const DaemonSecurity& security,
                                            const std::string& coordinator) {
  const CoordinatorTarget plain(coordinator);
  for (const std::string& address : plain.addresses()) {
    if (security.reaches_beyond_host() || IsLoopback(address)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(address,
                     " is beyond this host: give certificates (--tls=DIR; muster certs issue makes "
                     "them), or pass --insecure"));
  }
  if (const TlsFolder folder{security.tls}; !security.tls.empty() && !folder.has_certificate()) {
    return WithReason(
        absl::UnavailableError(absl::StrCat(
            folder.certificate(), " does not exist: a member needs a certificate of its own")),
        "CERTIFICATE_FILES");
  }
  return SecureTarget(coordinator, {.tls = security.tls, .token_file = ""});
}

}  // namespace muster
