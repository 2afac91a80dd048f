// Finds out why an etcd server rejects our TLS connection. gRPC only reports a closed connection.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace muster {

struct EtcdGreeting {
  bool speaks_tls = false;       // false: it does not, or the probe failed
  bool has_certificate = false;  // we have a certificate to present on request
  // The alert with which the server rejected our certificate or its absence, as "bad certificate".
  // "": none.
  std::string objection;
};

// Performs a TLS handshake with `server` (host:port), with the folder `tls` as EtcdClient uses it,
// then closes the connection. If `tls` is "" any server certificate is accepted, because the probe
// sends nothing secret. Fields that could not be determined keep their defaults.
// Blocks for up to twice `timeout`, plus the time of the name lookup.
EtcdGreeting GreetEtcd(absl::string_view server, const std::string& tls, absl::Duration timeout);

}  // namespace muster
