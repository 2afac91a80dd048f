// The command-line flags of ps and worker that select how they reach their peers.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/tcp/data_port.h"

namespace muster {

// The threads of a process: `pollers` threads have a transport each, and `busy_threads` others
// compute.
struct TransportThreads {
  int pollers = 1;
  int busy_threads = 0;
};

// The peers that may reach the data port. With kThisHost, the port listens at 127.0.0.1 if
// --data_port names no host, and a host beyond this one is refused.
enum class DataReach { kAnywhere, kThisHost };

// Reads --transport, --poll and the flags of the data port. If TCP is used, opens the port, which
// all transports of the factory share, and exports the number of refused connections. `metrics`
// must outlive the factory. Returns INVALID_ARGUMENT with the name of a wrong flag, or UNAVAILABLE
// if the port cannot be opened.
absl::StatusOr<TransportFactory> TransportFromFlags(TransportThreads threads, Metrics& metrics,
                                                    DataReach reach = DataReach::kAnywhere);

// Parses --data_port: [HOST:]PORT or [HOST:]FIRST-LAST, with an IPv6 host in brackets. A range
// means its first free port, 0 any port. Returns INVALID_ARGUMENT without the flag's name.
absl::Status ParseDataPort(absl::string_view text, DataPortOptions& options);

// Returns the value of --transport, which a worker reports in its Hello.
std::string TransportWord();

}  // namespace muster
