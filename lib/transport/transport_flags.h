// The command-line flags of ps and worker that choose how they reach their peers.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "lib/transport/transport.h"

namespace muster {

// Of a process in which `pollers` threads each have a transport and `busy_threads` others compute.
struct TransportThreads {
  int pollers = 1;
  int busy_threads = 0;
};

// What --transport, --poll, --connections_per_peer and --allow_tcp_fallback say. INVALID_ARGUMENT
// names the flag that is wrong.
absl::StatusOr<TransportFactory> TransportFromFlags(TransportThreads threads);

// What --transport says, for introducing this process to others.
std::string TransportWord();

}  // namespace muster
