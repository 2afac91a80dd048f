// What a server of etcd has against our TLS. gRPC knows only that the connection was closed.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace muster {

struct EtcdGreeting {
  bool speaks_tls = false;       // false: it does not, or that is not known
  bool has_certificate = false;  // we have one to show, should it ask
  // The alert with which it refused our certificate, or that there was none: "bad certificate". "":
  // it did not.
  std::string objection;
};

// Shakes hands with `server` (host:port) as EtcdClient does with the folder `tls`, asks for nothing
// and hangs up. With `tls` "" whoever answers is believed, since it is told nothing. Whatever fails
// leaves the rest unknown. Blocks for twice `timeout` at most, and for as long as the name service
// does.
EtcdGreeting GreetEtcd(absl::string_view server, const std::string& tls, absl::Duration timeout);

}  // namespace muster
